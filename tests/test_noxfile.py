"""What the sessions install: lock.txt agrees with pyproject.toml, and nothing comes without a hash."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import nox
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
GROUPS = list(PROJECT["dependency-groups"])
TEXT = (ROOT / "lock.txt").read_text(encoding="utf-8")
# each line that names a distribution, and the lines that belong to it
ENTRIES = re.split(r"^(?=\w)", TEXT, flags=re.MULTILINE)[1:]


def parts(entry: str) -> tuple[str, str, list[str], list[str]]:
    """Take an entry apart, in another way than the noxfile: name, version, hashes, groups."""
    head, *rest = entry.splitlines()
    name, _, version = head.split()[0].partition("==")
    hashes = [line.split()[0] for line in rest if "--hash=" in line]
    (groups,) = (line.split("# for ")[1].split(", ") for line in rest if "# for " in line)
    return name, version, hashes, groups


@pytest.mark.parametrize("group", GROUPS)
def test_the_lock_has_the_versions_of_pyproject(group):
    locked = {(name, version) for name, version, _, groups in map(parts, ENTRIES) if group in groups}
    pins = [Requirement(pin) for pin in nox.project.dependency_groups(PROJECT, group)]
    wanted = {(canonicalize_name(pin.name), str(pin.specifier).removeprefix("==")) for pin in pins}
    assert wanted and not wanted - locked, "run `nox -s lock`"


def test_the_lock_has_no_other_groups():
    assert {group for entry in ENTRIES for group in parts(entry)[3]} == set(GROUPS)


def test_every_distribution_has_a_version_and_hashes():
    assert len(ENTRIES) > 200
    for name, version, hashes, _ in map(parts, ENTRIES):
        assert re.fullmatch(r"[a-z0-9-]+", name) and re.fullmatch(r"[\w.]+", version), name
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes), name


def test_the_lock_names_no_server():
    assert "://" not in TEXT and not re.search(r"^-|--(extra-)?index|--find-links", TEXT, re.MULTILINE)


def test_a_group_is_complete(noxfile):
    """What the distributions of this environment ask for is in their group, too."""
    locked = noxfile.locked("test")
    asked = 0
    for found in metadata.distributions():
        name = canonicalize_name(found.name)
        if f"{name}=={found.version} " not in locked.get(name, ""):
            continue  # not of the lock, or another version
        for requirement in map(Requirement, found.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in locked, f"{found.name} asks for {requirement}"
                asked += 1
    assert asked > 100


def test_the_package_needs_nothing_beyond_its_groups(noxfile):
    """It is installed without its dependencies, and by the locked hatchling."""
    for group in ("docs", "test", "bench", "libraries", "lint"):
        for requirement in PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]:
            assert canonicalize_name(Requirement(requirement).name) in noxfile.locked(group)


def test_shellcheck_reads_every_shell_script(noxfile):
    folders = [ROOT / name for name in (".ci", ".github", "benchmarks", "docs", "examples", "src", "tests")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    shells = {path.relative_to(ROOT) for path in files if re.match(rb"#!.*sh\n", path.read_bytes()[:60])}
    assert len(shells) > 5
    assert set(noxfile.shell_scripts()) == shells


class Recorder:
    """A session that notes what it would install, and the file of requirements of the time."""

    def __init__(self, folder: Path) -> None:
        self.virtualenv, self.calls = SimpleNamespace(location=str(folder)), []

    def install(self, *arguments: str) -> None:
        texts = [Path(one).read_text("utf-8") for one in arguments if one.endswith(".txt")]
        self.calls.append((arguments, "".join(texts)))


def test_a_session_installs_its_group_by_hashes(noxfile, tmp_path):
    session = Recorder(tmp_path)
    noxfile.install(session, "docs")
    (options, text), (package, _) = session.calls
    assert options[0] == "--require-hashes" and "--no-deps" not in options
    assert set(package) == {"--no-deps", "--no-build-isolation", "-e", "."}
    assert re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:] == [
        entry for entry in ENTRIES if "docs" in parts(entry)[3]
    ]
    assert "torch==" in text and "furo==" in text and "mypy==" not in text


@pytest.mark.parametrize("by_variable", [False, True])
def test_another_build_of_pytorch_comes_first_and_the_rest_by_hashes(
    noxfile, tmp_path, monkeypatch, by_variable
):
    session = Recorder(tmp_path)
    if by_variable:
        monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
        noxfile.install(session, "test")
        expected = [pin for pin in PROJECT["dependency-groups"]["lessons"] if pin.startswith("torch")]
    else:
        expected = ["torch==2.9.1", "torchvision==0.24.1"]
        noxfile.install(session, "test", *expected)
    (first, _), (options, text), _ = session.calls
    assert list(first) == expected
    assert {"--require-hashes", "--no-deps"} <= set(options)
    assert not re.search(r"^(torch|nvidia|triton|cuda)", text, re.MULTILINE) and "sympy==" in text


WEAK = {"name": "django", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SOUND = {"name": "furo", "version": "2025.12.19", "vulns": []}
UNKNOWN = {"name": "furo", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([WEAK, SOUND], None),
        ([WEAK], "does not know 1 of 2: furo==2025.12.19"),
        ([WEAK, UNKNOWN], "does not know 1 of 2: furo==2025.12.19"),
        ([{**WEAK, "vulns": []}, SOUND], "reports nothing for django==2.0"),
        ([SOUND], "reports nothing for django==2.0"),
        ([WEAK, {**SOUND, "vulns": WEAK["vulns"]}], "furo==2025.12.19: PYSEC-1, fixed in 2.1"),
        ([], "does not know 2 of 2"),
    ],
)
def test_an_audit_without_evidence_fails(noxfile, answers, problem):
    found = noxfile.weaknesses(answers, ["furo==2025.12.19", noxfile.KNOWN_WEAK])
    assert problem in "\n".join(found) if problem else found == []
