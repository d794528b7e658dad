"""Everything that only a real GPU can tell, in one command, for a machine that is there for an hour.

    python docs/gpu_day.py --minutes 25         tests, comparison, recordings, benchmarks
    python docs/gpu_day.py --collect FOLDER     at home: put the results into their places

It needs what the lessons need, and pytest. The most valuable parts run first, each in its own process group
and within a time limit. Every result is a file below ``--out`` as soon as it is there; ``state.json`` there
says how each part ended, so the same command again continues: first with parts that have not run, then with
those that were stopped. After a change to the code, or on another machine, use another folder.
docs/handbook.rst, "A day with a GPU", says more.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ext.recorded.files import SIMULATED, RecordingError, load

ROOT = Path(__file__).resolve().parents[1]
GRACE = 5  # seconds that a part has to end after SIGINT
LAST = 2 * GRACE  # seconds kept for a part that does not end by itself
FINISHED = ("done", "failed")  # states of parts that do not run again
SAME = ("gpu", "torch", "code", "rehearsal")  # facts that all results in a folder share
ENVIRONMENT = {
    "GPULESSON_DEVICE": "cuda",
    "MPLBACKEND": "Agg",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a machine may have plugins that are broken there
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
    "PYTHONUNBUFFERED": "1",
}
CODE = ("src/**/*.py", "tests/**/*.py", "examples/**/*.py", "benchmarks/*.py", "docs/_ext/**/*.py")
FACTS = """
import json, sys, torch
if sys.argv[1:]:
    import practice_gpu as practice
    practice.start(force=True)
there = torch.cuda.is_available() and torch.ones(2, device="cuda").sum().item() == 2
gpu = torch.cuda.get_device_name() if there else ""
print(json.dumps({"gpu": gpu, "torch": torch.__version__, "python": sys.version.split()[0]}))
"""


class Refused(Exception):
    """The request cannot be met; the text says why."""


@dataclass(frozen=True)
class Part:
    """One program: its name, its script with arguments, the seconds that it needs, the file of its result."""

    name: str
    command: Sequence[str]
    seconds: float
    result: str


# -- the parts


def all_parts(out: Path, rehearse: bool) -> list[Part]:
    """Return the parts, the most valuable first; a rehearsal measures few rounds."""
    flags = ["--rehearse"] if rehearse else []
    words = ["tests/practice_gpu/word_for_word.py", str(out / "words"), *flags]
    comparison = Part("word_for_word", words, 240, "words/word_for_word.txt")
    return [*tests(out), comparison, *recordings(out, flags), *benchmarks(out, rehearse)]


def tests(out: Path) -> Iterator[Part]:
    """Yield the files with tests marked ``gpu``: a test that breaks its process harms one file's only."""
    found = importlib.util.find_spec("pytest")
    if found is None or found.origin is None:
        raise Refused("pytest is missing: install it, the tests need it")
    pytest = str(Path(found.origin).with_name("__main__.py"))
    own = ["-o", "addopts=", "-o", "minversion=7", "-m", "gpu", "-v", "-p", "no:cacheprovider"]
    own += ["-p", "practice_gpu.pytest_plugin"]
    own += ["-p", "pytest_timeout", "--timeout=120"] if importlib.util.find_spec("pytest_timeout") else []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = file.relative_to(ROOT).as_posix()
        if "pytest.mark.gpu" in file.read_text(encoding="utf-8") and "tests/site/" not in name:
            result = f"tests/{file.stem}.xml"
            yield Part(file.stem, [pytest, *own, f"--junitxml={out / result}", name], 40, result)


def recordings(out: Path, flags: list[str]) -> Iterator[Part]:
    """Yield the lessons, to be recorded."""
    for lesson in sorted((ROOT / "examples").glob("[0-9][0-9]_*.py")):
        command = ["docs/record.py", *flags, "--into", str(out / "recordings"), lesson.stem]
        yield Part(lesson.stem, command, 45, f"recordings/{lesson.stem}.json")


def benchmarks(out: Path, rehearse: bool) -> Iterator[Part]:
    """Yield the benchmarks that can use a GPU; those that take long run fewer rounds than on a CPU."""
    for name, seconds, rounds, few in (
        ("captured", 60, "--rounds 9", "--rounds 2"),
        ("plan_on_gpu", 90, "", "--batch 2 --steps 1"),
        ("ladder", 300, "--rounds 5", "--rounds 2"),
        ("overhead", 180, "--pairs 100", "--pairs 2 --rounds 2"),
        ("time_to_accuracy", 400, "--seeds 5", "--seeds 2"),
    ):
        result, numbers = f"benchmarks/{name}.json", few if rehearse else rounds
        command = [f"benchmarks/{name}.py", "--json", str(out / result), *numbers.split()]
        yield Part(name, command, seconds, result)


def missing() -> Iterator[str]:
    """Say what this machine lacks, and what will fail without it."""
    wanted = ("torchvision", "matplotlib", "sklearn", "scipy", "tqdm")
    if absent := [name for name in wanted if importlib.util.find_spec(name) is None]:
        yield f"not installed; without a network they can come along as wheels: {' '.join(absent)}"


def facts_of(rehearse: bool) -> dict[str, Any]:
    """Describe the machine and the code; refuse a machine without a GPU, unless it is a rehearsal."""
    environment = {**os.environ, **ENVIRONMENT, **hidden(rehearse)}
    command = [sys.executable, "-c", FACTS, *(["rehearse"] if rehearse else [])]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True)
    facts = json.loads(asked.stdout) if asked.returncode == 0 else {"gpu": ""}
    if not facts["gpu"]:
        why = "; ".join(asked.stderr.strip().split("\n")[-1:]) or f"torch {facts['torch']} finds none"
        raise Refused(f"this needs a CUDA GPU ({why}); --rehearse runs it all on the practice GPU")
    code = hashlib.sha256()
    for file in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        code.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return {**facts, "code": code.hexdigest()[:12], "rehearsal": rehearse}


def hidden(rehearse: bool) -> dict[str, str]:
    """Return the variables that hide a real GPU in a rehearsal."""
    return {"CUDA_VISIBLE_DEVICES": ""} if rehearse else {}


# -- running them


class Day:
    """How each part ended so far, below the folder `out`: on one machine, with one version of the code."""

    def __init__(self, out: Path, facts: dict[str, Any]) -> None:
        self.out, self.facts, self.state = out, facts, out / "state.json"
        self.done: dict[str, dict[str, Any]] = {}
        if self.state.is_file():
            before = json.loads(self.state.read_text(encoding="utf-8"))
            if other := [
                f"{key} {before[key]}, not {facts[key]}" for key in SAME if before[key] != facts[key]
            ]:
                raise Refused(f"{out} holds results of {', '.join(other)}; take another --out, or remove it")
            self.done = before["parts"]

    def state_of(self, name: str) -> str:
        """Return how a part ended; empty if it has not run."""
        return str(self.done.get(name, {"state": ""})["state"])

    def note(self, part: Part, state: str, seconds: float = 0.0) -> None:
        """Write down how a part ended; the file is whole at every moment."""
        log = self.out / "logs" / f"{part.name}.log"
        self.done[part.name] = {"state": state, "seconds": round(seconds, 1), "says": last_line(log)}
        whole = json.dumps({**self.facts, "parts": self.done}, indent=1, ensure_ascii=False)
        unfinished = self.state.with_suffix(".part")
        unfinished.write_text(whole + "\n", encoding="utf-8")
        unfinished.replace(self.state)

    def run(self, parts: Sequence[Part], end: float) -> None:
        """Run what is left to do until `end`, on the clock of `time.monotonic`."""
        todo = [part for part in parts if self.state_of(part.name) not in FINISHED]
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
            begin, state = time.monotonic(), "stopped"
            try:
                state = self.run_part(part, limit)
            finally:  # also after Ctrl-C
                self.note(part, state, time.monotonic() - begin)
            print(f"{part.name}: {state}: {self.done[part.name]['says']}", flush=True)

    def run_part(self, part: Part, limit: float) -> str:
        """Run one part, end it with its process group, and return its state."""
        log = self.out / "logs" / f"{part.name}.log"
        for file in (log, self.out / part.result):
            file.parent.mkdir(parents=True, exist_ok=True)
        self.note(part, "stopped")  # in case this program is killed
        command = [sys.executable, *part.command]
        if self.facts["rehearsal"]:
            command[1:1] = ["-m", "gpulesson", "practice"]
        environment = {**os.environ, **ENVIRONMENT, **hidden(self.facts["rehearsal"])}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lead_a_group,
            )
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                return "stopped"
            finally:
                stop(process)
            if status < 0:  # it could not say so itself
                output.write(f"ended by signal {-status}\n".encode())
            return "failed" if status else "done"


def lead_a_group() -> None:
    """Start a process group, and let SIGINT end it even in the background of a shell."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a part: first by SIGINT, so that it writes down what it has; then its whole process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.strip("= ")[:110] for line in reversed(lines) if line.strip()), "")


# -- results that came back


def collect(source: Path, home: Path = ROOT) -> list[str]:
    """Copy recordings and figures of a finished day into the project; return the names of the copies.

    Raises
    ------
    Refused
        It was a rehearsal, or there is nothing.
    """
    if not (source / "state.json").is_file():
        raise Refused(f"{source} holds no state.json: it is not a folder that this program wrote")
    facts = json.loads((source / "state.json").read_text(encoding="utf-8"))
    if facts["rehearsal"] or SIMULATED in facts["gpu"].lower():
        raise Refused("that was a rehearsal on the practice GPU, not a real one: nothing was copied")
    return [*collected_recordings(source, home), *collected_figures(source, home)]


def collected_recordings(source: Path, home: Path) -> Iterator[str]:
    folder = home / "docs" / "recordings"
    for file in sorted(source.glob("recordings/*.json")):
        load(file)  # refuses a damaged or simulated one
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / file.stem, ignore_errors=True)
        if (pictures := file.with_suffix("")).is_dir():
            shutil.copytree(pictures, folder / file.stem)
        shutil.copy(file, folder)
        yield f"docs/recordings/{file.name}"


def collected_figures(source: Path, home: Path) -> Iterator[str]:
    """Copy the figures to a separate folder: those beside it are a CPU's."""
    folder = home / "benchmarks" / "results" / "gpu"
    for file in sorted(source.glob("benchmarks/*.json")):
        device = json.loads(file.read_text(encoding="utf-8"))["about"]["device"]
        if SIMULATED in device.lower() or "cuda" not in device:
            raise Refused(f"{file.name} was measured on {device}, not on a GPU: it was not copied")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
        yield f"benchmarks/results/gpu/{file.name}"


# -- the command line


def main(arguments: Sequence[str] | None = None) -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=25.0, help="the program ends within them; default: 25"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "gpu_day", help="folder of the results")
    parser.add_argument("--only", nargs="+", default=[""], help="parts whose names begin with one of these")
    parser.add_argument("--again", action="store_true", help="also run parts that have run before")
    parser.add_argument(
        "--rehearse", action="store_true", help="on the practice GPU; nothing can be collected"
    )
    parser.add_argument("--collect", type=Path, help="only copy the results in this folder into the project")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent where a machine is taken away
    try:
        if options.collect:
            print("\n".join(collect(options.collect)) or "there was nothing to collect")
            return 0
        out = options.out.absolute()
        day = Day(out, facts_of(options.rehearse))
        parts = [p for p in all_parts(out, options.rehearse) if p.name.startswith(tuple(options.only))]
    except (Refused, RecordingError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.again:
        for part in parts:
            day.done.pop(part.name, None)
    print(", ".join(f"{key} {value}" for key, value in day.facts.items()), *missing(), sep="\n", flush=True)
    try:
        day.run(parts, start + 60 * options.minutes - LAST)
    except KeyboardInterrupt:
        print("stopped; the same command continues")
        return 130
    left = [part.name for part in parts if day.state_of(part.name) not in FINISHED]
    print(f"left to do: {', '.join(left)}" if left else "all parts have run", f"results: {out}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
