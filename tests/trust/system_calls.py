"""A real error, or a real signal, at a chosen system call of a program that runs: ``strace`` puts it there.

The program, a function of runs.py in a fork of its own, prepares itself and waits for SIGUSR1. Then strace
takes hold of it. A first program runs without faults, and its calls that have to do with files are listed;
each of the others meets a fault at one call of this list.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KINDS = "trace=%file,%desc"  # calls with the name of a file, or with an open one
CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)")
END = "/the end of what is watched"


@dataclass(frozen=True)
class Traced:
    """How a program went: its exit status, what it told, and the lines of strace."""

    status: int
    told: dict[str, Any] | None
    output: str
    lines: list[str]

    @property
    def hit(self) -> bool:
        return any("(INJECTED)" in line or "--- SIG" in line for line in self.lines)

    def calls(self) -> list[tuple[str, int]]:
        """List the calls, each with how many of its name in its thread came up to it."""
        seen: dict[tuple[str, str], int] = {}
        found = []
        for line in self.lines:
            thread = line.partition(" ")[0]
            if END in line:
                break
            if match := CALL.match(line):
                number = seen[thread, match[1]] = seen.get((thread, match[1]), 0) + 1
                if "MAP_ANONYMOUS" not in match[2]:
                    found.append((match[1], number))
        return list(dict.fromkeys(found))


def traced(warm, folder: Path, operation: str, *arguments: Any, inject: str = "", how: str = "") -> Traced:
    """Run an operation of runs.py in a fork, from `folder`, with what strace is to inject."""
    if not shutil.which("strace"):
        pytest.skip("needs strace: apt install strace")
    program = warm.start("runs:watched", operation, how, *arguments, folder=folder)
    begun = program.stdout.readline()
    if begun != "ready\n":
        rest = program.communicate()[0]
        raise AssertionError(f"{operation} was not prepared: {begun}{rest}")
    log = folder.with_suffix(".strace")
    command = ["strace", "-f", "-p", str(program.pid), "-o", str(log), "-e", KINDS, "-e", "signal=none"]
    if "signal=" in inject:
        command[-1] = "signal=all"
    if inject:
        command += ["-e", f"inject={inject}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr
        first = strace.stderr.readline()
        if "attached" not in first:
            program.kill()
            pytest.skip(f"strace does not work here: {first}")
        os.kill(program.pid, signal.SIGUSR1)
        limit = threading.Timer(120, program.kill)
        limit.start()
        done = program.stdout.readline()
        strace.terminate()  # it lets go of the program
        strace.communicate()
    if done == "done\n":  # else a signal has ended it
        os.kill(program.pid, signal.SIGUSR1)
    output = done + program.communicate()[0]
    limit.cancel()
    told = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("told ")]
    lines = log.read_text(errors="replace").splitlines()
    lines = [line for line in lines if "SIGUSR1" not in line]
    return Traced(program.returncode, told[-1] if told else None, output, lines)
