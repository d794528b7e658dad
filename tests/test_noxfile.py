"""What the sessions install: lock.txt agrees with pyproject.toml, and nothing comes without a hash."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import nox
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
TEXT = (ROOT / "lock.txt").read_text(encoding="utf-8")
# each line that names a distribution, and the lines that belong to it
ENTRIES = re.split(r"^(?=\w)", TEXT, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("group", PROJECT["dependency-groups"])
def test_the_lock_has_the_versions_of_pyproject(group):
    pins = map(Requirement, nox.project.dependency_groups(PROJECT, group))
    wanted = {f"{canonicalize_name(pin.name)}{pin.specifier}" for pin in pins}
    assert wanted and not wanted - {entry.split()[0] for entry in ENTRIES}, "run `nox -s lock`"


def test_the_lock_has_exact_versions_with_hashes_and_names_no_server():
    assert len(ENTRIES) > 200
    for entry in ENTRIES:
        assert re.match(r"[a-z0-9-]+==[\w.]+ ", entry) and re.search("--hash=sha256:[0-9a-f]{64}$", entry)
    assert "://" not in TEXT and not re.search(r"^-|--(extra-)?index|--find-links", TEXT, re.MULTILINE)


def test_shellcheck_reads_every_shell_script(noxfile):
    folders = [ROOT / name for name in (".ci", ".github", "benchmarks", "docs", "examples", "src", "tests")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    scripts = (path for path in files if re.match(rb"#!.*sh\n", path.read_bytes()[:60]))
    shells = {str(path.relative_to(ROOT)) for path in scripts}
    assert len(shells) > 5
    assert set(noxfile.SHELL_SCRIPTS) == shells


@pytest.mark.parametrize(
    ("backend", "pytorch"), [("", ()), ("cpu", ()), ("", ("torch==2.9.1", "torchvision==0.24.1"))]
)
def test_a_session_installs_its_group_by_hashes(noxfile, tmp_path, monkeypatch, backend, pytorch):
    """Of another build of PyTorch the lock has no hashes: it must not know the names that this brings."""
    monkeypatch.setenv("UV_TORCH_BACKEND", backend)
    calls = []
    virtualenv = SimpleNamespace(location=str(tmp_path))
    noxfile.install(
        SimpleNamespace(virtualenv=virtualenv, install=lambda *words: calls.append(words)), "docs", *pytorch
    )
    (group, package) = calls
    assert set(package) == {"--no-deps", "--no-build-isolation", "-e", "."}
    option, constraint, overrides = group[0], *(Path(word).read_text() for word in (group[2], group[4]))
    assert group[1::2] == ("--constraint", "--override", "--group")
    assert overrides.split() == list(pytorch)
    if backend or pytorch:
        assert option == "--verify-hashes"
        kept = [
            entry
            for entry in ENTRIES
            if not re.match(r"(torch(vision)?|triton|setuptools|nvidia-.+|cuda-.+)==", entry)
        ]
        assert re.split(r"^(?=\w)", constraint, flags=re.MULTILINE)[1:] == kept
        assert any(entry.startswith("torchmetrics==") for entry in kept)
    else:
        assert option == "--require-hashes" and constraint == TEXT
