"""A program in a fork of a warm process prints, fails and ends as in an interpreter of its own."""

from __future__ import annotations

import pytest
from processes import run_script
from warm import POSSIBLE, WarmProcess

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="this system has no warm process")

BEGIN = """
import atexit, os, sys, tempfile, threading, time

atexit.register(print, "last of all")
print(__name__, sys.argv[1:], os.getcwd(), os.environ["SAID"], sys.stdin.read())
folder = sys.modules["folder"] = tempfile.TemporaryDirectory(dir=".")
if "CRASH" not in os.environ:  # which comes first, the thread's end or the crash, is chance
    threading.Thread(target=lambda: (time.sleep(0.1), print("a thread's end"))).start()
print("to standard error", file=sys.stderr)
"""
ENDS = {"end": "", "status": "sys.exit(3)", "text": "sys.exit('no')", "crash": "os.kill(os.getpid(), 9)"}


@pytest.fixture(scope="module")
def warm():
    with WarmProcess(preload=[]) as warm:
        yield warm


@pytest.mark.parametrize("end", ENDS)
def test_a_fork_does_what_an_interpreter_does(warm, tmp_path, end):
    (tmp_path / "program.py").write_text(f"{BEGIN}\n{ENDS[end]}\n")
    found = []
    for process in (warm, None):
        folder = tmp_path / f"folder of {len(found)}"
        folder.mkdir()
        said = {"SAID": "a word", "PYTHONUNBUFFERED": "1"} | ({"CRASH": "1"} if end == "crash" else {})
        done = run_script(process, tmp_path / "program.py", folder, **said)
        left = list(folder.iterdir())
        found.append((done.returncode, done.stdout.replace(str(folder), ""), done.stderr, len(left)))
    assert found[0] == found[1]
    assert "a word" in found[0][1]


def test_an_error_is_shown_with_its_line(warm, tmp_path):
    (tmp_path / "program.py").write_text("\n1 / 0\n")
    done = run_script(warm, tmp_path / "program.py", tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert 'program.py", line 2' in done.stderr
