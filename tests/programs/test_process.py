"""A function in a fresh process: what comes back, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulesson_tools.programs.process import Process

HERE = Path(__file__).parent


def answers(send, number):
    for each in range(number):
        send(str(each).encode())


def dies(send, how):
    os.kill(os.getpid(), how)


def starts_another(send):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    send(str(child.pid).encode())
    time.sleep(600)


def ended(pid: int) -> bool:
    """Wait until a process is gone, or is only waited for by nobody."""
    for _ in range(600):
        try:
            if ") Z" in Path(f"/proc/{pid}/stat").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_messages_come_in_order_and_then_the_end(tmp_path):
    process = Process(answers, 3, folder=str(tmp_path))
    assert [process.receive(60) for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(EOFError):
        process.receive(60)
    assert process.status() == 0
    process.end()


@pytest.mark.slow
def test_a_process_that_is_killed_sends_nothing_and_tells_by_what(tmp_path):
    process = Process(dies, signal.SIGKILL, folder=str(tmp_path))
    with pytest.raises(EOFError):
        process.receive(60)
    assert process.status() == -signal.SIGKILL
    process.end()


@pytest.mark.slow
def test_patience_ends_and_with_the_process_what_it_has_started(tmp_path):
    process = Process(starts_another, folder=str(tmp_path))
    child = int(process.receive(60))
    with pytest.raises(TimeoutError, match=r"within 0\.1 seconds"):
        process.receive(0.1)
    process.end()
    assert ended(child)
