"""The licences of what a reader installs: all are stated, and each is one that lets the reader use it."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections import defaultdict
from contextlib import suppress
from importlib import metadata
from types import SimpleNamespace

import nox
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from projects import ROOT

PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
with (ROOT / "docs" / "licences.csv").open(encoding="utf-8") as file:
    FOUND = list(csv.DictReader(file))
ALLOWED = {
    *(
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "ISC",
        "LLVM-exception",
    ),
    *("MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
}
# one file for the Emacs editor, which nothing here uses; libraries that may be used, not changed
EXCEPTIONS = {"docutils": {"GPL", "public domain"}}
NVIDIA = "LicenseRef-NVIDIA-Proprietary"


def unknown(name: str, licence: str) -> set[str]:
    """Return the parts of an expression that are not allowed."""
    parts = set(re.split(r" (?:AND|OR|WITH) ", licence.replace("(", "").replace(")", "")))
    allowed = ALLOWED | EXCEPTIONS.get(name, set())
    return parts - (allowed | {NVIDIA} if name.startswith(("nvidia-", "cuda-")) else allowed)


def test_every_licence_is_known():
    assert [row for row in FOUND if unknown(row["Distribution"], row["Licence"])] == []


@pytest.mark.parametrize("licence", ["", "GPL", "AGPL-3.0-only OR MIT", "UNKNOWN", NVIDIA])
def test_another_licence_is_noticed(licence):
    assert unknown("furo", licence)


def test_the_list_has_what_the_group_of_the_lock_has():
    """Run `nox -s licences` where it has not."""
    listed = {row["Distribution"]: row["Version"] for row in FOUND}
    locked = defaultdict(list)
    for name, version in re.findall(r"^(\S+)==(\S+)", (ROOT / "lock.txt").read_text("utf-8"), re.MULTILINE):
        locked[name].append(version)
    assert listed == {name: " or ".join(locked[name]) for name in listed}
    needed = list(map(Requirement, nox.project.dependency_groups(PROJECT, "docs")))
    for name in listed:  # what they need in this environment, which has them
        with suppress(metadata.PackageNotFoundError):  # of Windows, another Python, another build of PyTorch
            needed += map(Requirement, metadata.requires(name) or [])
    wanted = {one.name for one in needed if not one.marker or one.marker.evaluate({"extra": ""})}
    assert len(wanted) > 50 and set(map(canonicalize_name, wanted)) <= listed.keys()


@pytest.fixture
def program():
    found = importlib.util.spec_from_file_location("licences", ROOT / "docs" / "licences.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("about", "licence"),
    [
        ({"license_expression": "MIT OR ISC", "license": "other"}, "MIT OR ISC"),
        ({"license": "3-clause BSD"}, "BSD-3-Clause"),
        (
            {
                "license": "Permission is hereby granted\nto all",
                "classifier": ["License :: OSI Approved :: MIT License"],
            },
            "MIT",
        ),
        ({"classifier": ["Topic :: Education"]}, None),
        ({}, None),
    ],
)
def test_what_a_distribution_states_is_read(program, monkeypatch, about, licence):
    monkeypatch.setattr(metadata, "metadata", lambda name: SimpleNamespace(json=about))
    if licence:
        assert program.licence("some") == licence
    else:
        with pytest.raises(SystemExit, match="some states no licence"):
            program.licence("some")
