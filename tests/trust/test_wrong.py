"""The wrong calls have tests of their own, ``tests/test_wrong_calls.py``; here they are counted."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

CALLS = Path(__file__).parents[1] / "test_wrong_calls.py"


@pytest.mark.slow
@pytest.mark.thorough
def test_wrong_calls(tally, tmp_path):
    file = tmp_path / "calls.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={file}"]
    done = subprocess.run([*command, str(CALLS)], capture_output=True, text=True)
    assert file.exists(), done.stdout + done.stderr
    for case in ElementTree.parse(file).iter("testcase"):
        problems = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        name = case.attrib["name"]
        if "[" in name and "legal" not in name:  # one wrong call each
            tally.count(problems and f"{name}: {problems[0]}")
