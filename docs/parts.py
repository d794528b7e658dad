"""Runs programs one after the other, each within a limit of time, and goes on where a run before stopped.

Each has a process group of its own, which is ended with all that it has started. ``state.json`` in the folder
of the results knows how each ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GRACE = 5  # seconds that a part has to end by itself when it is told to
KEPT = ("done", "failed")  # parts that are not run again
UNPACKED = (".part", ".tar.gz")  # endings of files that no archive takes in: of itself, above all
MARK = "GPULESSON_RUN"  # environment variable of a part, which all that it starts inherits
SAME = ("gpu", "torch", "code", "rehearsal")  # facts that all results of a folder share


class Refused(Exception):
    """What was asked for cannot be done; the text says why."""


@dataclass(frozen=True)
class Part:
    """One program: its name, its script with arguments, the seconds it should take, where its result is."""

    name: str
    command: Sequence[str]
    seconds: float
    result: str = ""


class Day:
    """What was done so far, below the folder `out`: on one machine, with one version of the code.

    `facts` describe both. `pack` is an archive of `out`, which is up to date after every part. `environment`
    has variables for all parts.
    """

    def __init__(
        self, out: Path, facts: dict[str, Any], pack: Path | None = None, environment: Any = None
    ) -> None:
        self.out, self.facts, self.pack, self.environment = out, facts, pack, environment or {}
        self.done: dict[str, dict[str, Any]] = {}
        file = out / "state.json"
        if file.is_file():
            before = json.loads(file.read_text(encoding="utf-8"))
            if other := [
                f"{key} {before[key]}, not {facts[key]}" for key in SAME if before[key] != facts[key]
            ]:
                raise Refused(f"{out} holds results of {', '.join(other)}; take another --out, or remove it")
            self.done = before["parts"]

    def state_of(self, name: str) -> str:
        """Return how a part ended; empty if it has not run."""
        return str(self.done.get(name, {"state": ""})["state"])

    def note(self, part: Part, state: str, seconds: float = 0.0) -> None:
        """Write down how a part ended."""
        said = last_line(self.out / "logs" / f"{part.name}.log")
        self.done[part.name] = {"state": state, "seconds": round(seconds, 1), "says": said}
        whole = json.dumps({**self.facts, "parts": self.done}, indent=1, ensure_ascii=False)
        replace(self.out / "state.json", lambda file: file.write_text(whole + "\n", encoding="utf-8"))
        if self.pack:
            replace(self.pack, self.write_archive)

    def write_archive(self, file: Path) -> None:
        with tarfile.open(file, "w:gz") as archive:
            archive.add(
                self.out, "gpu_day", filter=lambda info: None if info.name.endswith(UNPACKED) else info
            )

    def run(self, parts: Sequence[Part], end: float) -> None:
        """Run what is left to do until `end`, on the clock of `time.monotonic`."""
        todo = [part for part in parts if self.state_of(part.name) not in KEPT]
        todo.sort(key=lambda part: bool(self.state_of(part.name)))  # those that were stopped come last
        started = 0
        for place, part in enumerate(todo):
            left = end - time.monotonic()
            if left < 1 or (started and left < part.seconds):  # another run has more time for it
                continue
            started += 1
            due = sum(other.seconds for other in todo[place:])
            limit = min(left, max(4 * part.seconds, left * part.seconds / due))
            print(f"{part.name}: at most {limit:.0f} s …", flush=True)
            self.note(part, "stopped")  # in case nobody comes to write more
            begin = time.monotonic()
            state = "stopped"
            try:
                state = self.run_part(part, limit)
            finally:  # also after Ctrl-C
                self.note(part, state, time.monotonic() - begin)
            print(f"{part.name}: {state}: {self.done[part.name]['says']}", flush=True)

    def run_part(self, part: Part, limit: float) -> str:
        """Run one part, and end it and all that it has started; return its state."""
        log = self.out / "logs" / f"{part.name}.log"
        for file in (log, self.out / part.result):
            file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *part.command]
        mark = f"{self.out}:{part.name}"
        own = {"PYTHONPATH": search_path(), MARK: mark, "PYTHONUNBUFFERED": "1", **self.environment}
        if self.facts["rehearsal"]:
            command[1:1] = ["-m", "gpulesson", "practice"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lead_a_group,
            )
            try:
                status = process.wait(limit)
                if status < 0:  # it could not say so itself
                    output.write(f"ended by signal {-status}\n".encode())
                return "failed" if status else "done"
            except subprocess.TimeoutExpired:
                return "stopped"
            finally:
                stop(process, mark)

    def summary(self, parts: Sequence[Part]) -> Iterator[str]:
        """Yield the lines of a table: every part, its state, its seconds, its result, what it said last."""
        width = max(len(part.name) for part in parts)
        for part in parts:
            entry = self.done.get(part.name, {"seconds": 0.0, "says": ""})
            state, result = self.state_of(part.name) or "to do", self.out / part.result
            where = result if result.is_file() else self.out / "logs" / f"{part.name}.log"
            shown = f"{where}  {entry['says']}" if state != "to do" else ""
            yield f"{part.name:{width}}  {state:7}  {entry['seconds']:6.1f} s  {shown}".rstrip()


def search_path() -> str:
    """Return PYTHONPATH with the package's sources before what is there."""
    return os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))


def lead_a_group() -> None:
    """Begin a process so that all that it starts can be ended together, and so that SIGINT reaches it.

    What a shell starts in the background would ignore that signal, and so would all that it starts itself.
    """
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stop(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a part: first ask, so that it writes down what it has; then with all that it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    end_group(process.pid, mark)
    process.wait()


def end_group(leader: int, mark: str) -> None:
    """Kill a process group, and on Linux every process that has left it and carries its mark."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            marked = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if marked and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)  # at last: the caller may be in it


def replace(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file that is whole at every moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".part")
    write(unfinished)
    unfinished.replace(file)


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.strip("= ")[:110] for line in reversed(lines) if line.strip()), "")
