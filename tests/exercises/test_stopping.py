"""A check that is stopped, or killed, leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulesson.exercises.process.leftovers import marked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

# it computes for ever, has a child that does, and one in a session of its own, which ignores signals
ENDLESS = """
import os, signal, subprocess, sys
loop = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\\nwhile True: pass"
subprocess.Popen([sys.executable, "-c", loop])
subprocess.Popen([sys.executable, "-c", loop], start_new_session=True)
open(os.environ["STARTED"], "a").write(os.environ["GPULESSON_RUN"] + "\\n")
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""


def processes(runs: list[str]) -> list[int]:
    return [pid for run in runs for pid in marked(run)]


def running() -> dict[int, int]:
    """All processes that have not ended, and the parent of each."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(entry.parent.name)] = int(parent)
    return found


def family(pid: int) -> set[int]:
    """A process and its descendants."""
    parents, found = running(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def wait_for(happened, seconds: float) -> bool:
    """Whether it happens, before this machine has had that many seconds."""
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


@pytest.mark.parametrize(
    ("name", "status"),
    [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGKILL", -9)],
)
@pytest.mark.parametrize("command", ["check", "submissions", "two processes"])
def test_a_command_that_ends_leaves_nothing_running(tmp_path, command, name, status):
    folder, started = tmp_path / "files", tmp_path / "started"
    folder.mkdir()
    files = {"check": ["04_one.py"], "two processes": ["14_one.py"]}.get(command, ["04_one.py", "04_two.py"])
    number = 1 if command == "check" else 2
    for file in files:
        (folder / file).write_text(ENDLESS)
    asked = (
        ["submissions", "04", str(folder), "-j2"]
        if command == "submissions"
        else ["check", str(folder / files[0])]
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gpulesson", *asked],
        env={**os.environ, "STARTED": str(started)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def runs() -> list[str]:
        return started.read_text().split() if started.exists() else []

    try:
        assert wait_for(lambda: len(runs()) == number, 300)
        assert wait_for(lambda: len(processes(runs())) >= 2 * number, 60), "the children have begun"
        started_by_it = family(process.pid) | set(processes(runs()))
        sent = time.monotonic()
        process.send_signal(getattr(signal, name))
        gone = wait_for(lambda: not (processes(runs()) or started_by_it & running().keys()), 60)
        print(
            f"{command}, {name}: {len(started_by_it)} processes, gone after {time.monotonic() - sent:.2f} s"
        )
        _, complaint = process.communicate(timeout=60)
        assert gone and process.returncode == status
        assert complaint.split() == ([] if name == "SIGKILL" else ["gpulesson:", "stopped"])
    finally:
        process.kill()
        for pid in processes(runs()):
            os.kill(pid, signal.SIGKILL)
