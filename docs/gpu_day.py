"""Everything that only a real GPU can tell, in one command, for a machine that is there for an hour.

    python docs/gpu_day.py --minutes 25               tests, comparison, recordings, benchmarks
    python docs/gpu_day.py --collect gpu_day.tar.gz   at home: put what came back into its places

It needs what the lessons need, and pytest. Parts run in the order of their worth, each in a process group of
its own, which is ended with all that it has started when its time is over. Every result is a file as soon as
it is there, below ``--out``; ``state.json`` there knows what was done, so the same command again goes on:
first with parts that have not run, then with those that were stopped. Other code, or another machine, needs
another folder. docs/handbook.rst, "A day with a GPU", says more.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _ext.recorded.files import SIMULATED, RecordingError, load
from parts import GRACE, ROOT, Day, Part, Refused, search_path

LAST = 2 * GRACE  # seconds kept for a part that does not end by itself, and for the summary
ENVIRONMENT = {
    "GPULESSON_DEVICE": "cuda",
    "MPLBACKEND": "Agg",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a machine may have plugins that are broken there
}
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # of a real GPU in a rehearsal
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


# -- the parts


def all_parts(out: Path, rehearse: bool) -> list[Part]:
    """Return the parts in the order of their worth; a rehearsal measures few rounds."""
    return [
        *tests(out),
        comparison(out, rehearse),
        *recordings(out, rehearse),
        *benchmarks(out, rehearse),
    ]


def tests(out: Path) -> Iterator[Part]:
    """Yield the tests marked ``gpu``, file by file: what spoils a process spoils one file's."""
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


def comparison(out: Path, rehearse: bool) -> Part:
    """Return the table of what a GPU and the practice GPU say to the same programs."""
    flags = ["--rehearse"] if rehearse else []
    return Part(
        "word_for_word",
        ["tests/practice_gpu/word_for_word.py", str(out / "words"), *flags],
        240,
        "words/word_for_word.txt",
    )


def recordings(out: Path, rehearse: bool) -> Iterator[Part]:
    """Yield the lessons, to be recorded."""
    flags = ["--rehearse"] if rehearse else []
    for lesson in sorted((ROOT / "examples").glob("[0-9][0-9]_*.py")):
        command = ["docs/record.py", *flags, "--into", str(out / "recordings"), lesson.stem]
        yield Part(lesson.stem, command, 45, f"recordings/{lesson.stem}.json")


def benchmarks(out: Path, rehearse: bool) -> Iterator[Part]:
    """Yield the programs that measure, and know a GPU, with fewer rounds where those take long."""
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
    """Tell what is not on this machine, and who will fail without it."""
    wanted = ("torchvision", "matplotlib", "sklearn", "scipy", "tqdm", "requests", "pooch", "platformdirs")
    if absent := [name for name in wanted if importlib.util.find_spec(name) is None]:
        yield f"not installed; without a network they can come along as wheels: {' '.join(absent)}"
    named = os.environ.get("GPULESSON_DATA")
    if not named or not list(Path(named).expanduser().glob("FashionMNIST/raw/*-ubyte*")):
        needs = "ladder, overhead and time_to_accuracy need that"
        yield f"GPULESSON_DATA names no folder that has FashionMNIST/raw: {needs}"


def facts_of(rehearse: bool) -> dict[str, Any]:
    """Describe the machine and the code; a machine without a GPU is refused, unless it is a rehearsal."""
    environment = {**os.environ, "PYTHONPATH": search_path(), **(HIDDEN if rehearse else {})}
    command = [sys.executable, "-c", FACTS, *(["rehearse"] if rehearse else [])]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True)
    facts = json.loads(asked.stdout) if asked.returncode == 0 else {"gpu": ""}
    if not facts["gpu"]:
        why = "; ".join(asked.stderr.strip().split("\n")[-1:]) or f"torch {facts['torch']} finds none"
        raise Refused(f"this needs a CUDA GPU ({why}); --rehearse runs it all on the practice GPU")
    code = hashlib.sha256()
    for file in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        code.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return {**facts, "code": code.hexdigest()[:12], "commit": commit(), "rehearsal": rehearse}


def commit() -> str:
    """Return the commit that is checked out; empty where that cannot be known."""
    git = shutil.which("git")
    command = [git or "", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() if git else ""


# -- what came back


def collect(source: Path, home: Path = ROOT) -> list[str]:
    """Copy recordings and figures of a finished day into the project; return what was copied.

    Raises
    ------
    Refused
        It was a rehearsal, or there is nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        if source.is_file():
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
            source = Path(folder, "gpu_day")
        if not (source / "state.json").is_file():
            raise Refused(f"{source} holds no state.json: it is not what this program wrote")
        facts = json.loads((source / "state.json").read_text(encoding="utf-8"))
        if facts["rehearsal"] or SIMULATED in facts["gpu"].lower():
            raise Refused(
                "that was a rehearsal on the practice GPU: it says nothing of a real one, none was taken"
            )
        return [*collected_recordings(source, home), *collected_figures(source, home)]


def collected_recordings(source: Path, home: Path) -> Iterator[str]:
    folder = home / "docs" / "recordings"
    for file in sorted(source.glob("recordings/*.json")):
        load(file)  # refuses what is damaged or simulated
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / file.stem, ignore_errors=True)
        if (pictures := file.with_suffix("")).is_dir():
            shutil.copytree(pictures, folder / file.stem)
        shutil.copy(file, folder)
        yield f"docs/recordings/{file.name}"


def collected_figures(source: Path, home: Path) -> Iterator[str]:
    """Copy the figures, and the table of words, to a folder of their own: those beside it are a CPU's."""
    folder = home / "benchmarks" / "results" / "gpu"
    for file in sorted([*source.glob("benchmarks/*.json"), *source.glob("words/*.json")]):
        device = json.loads(file.read_text(encoding="utf-8"))["about"]["device"]
        if SIMULATED in device.lower() or ("cuda" not in device and file.parent.name == "benchmarks"):
            raise Refused(f"{file.name} is of {device}, and no GPU's: it was not taken")
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
    parser.add_argument(
        "--pack", type=Path, help="keep all results in this .tar.gz as well, after every part"
    )
    parser.add_argument("--only", nargs="+", default=[""], help="parts whose names begin so")
    parser.add_argument("--again", action="store_true", help="run parts that were run already, too")
    parser.add_argument(
        "--rehearse", action="store_true", help="on the practice GPU; nothing can be collected"
    )
    parser.add_argument("--collect", type=Path, help="only copy the results of this folder or .tar.gz here")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a machine that is taken away asks like this
    try:
        if options.collect:
            print("\n".join(collect(options.collect)) or "there was nothing to collect")
            return 0
        out = options.out.absolute()
        environment = {**ENVIRONMENT, **(HIDDEN if options.rehearse else {})}
        day = Day(out, facts_of(options.rehearse), options.pack, environment)
        every = all_parts(out, options.rehearse)
    except (Refused, RecordingError) as error:
        print(error, file=sys.stderr)
        return 1
    parts = [part for part in every if part.name.startswith(tuple(options.only))]
    if options.again:
        for part in parts:
            day.done.pop(part.name, None)
    print(", ".join(f"{key} {value}" for key, value in day.facts.items()), *missing(), sep="\n", flush=True)
    status = 0
    try:
        day.run(parts, start + 60 * options.minutes - LAST)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        status = 130
    print("", *day.summary(every), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
