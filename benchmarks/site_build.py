"""How long the site takes to build: cold, unchanged, and with one lesson changed.

    python benchmarks/site_build.py [--rounds 3]

Works on a copy of the files that git knows, in a temporary folder. "Changed" adds a comment to one lesson;
its own time, as sphinx-gallery reports it, is taken off to see what the build adds.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Result, about, options

ROOT = Path(__file__).parents[1]
LESSON = "02_tensors_and_devices.py"


def build(folder: Path) -> tuple[float, str]:
    """Build the site in a folder and return the seconds, and what was logged."""
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-c", ".", "docs", "_build/html"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "NO_COLOR": "1"}
    start = time.perf_counter()
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"the site does not build:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return time.perf_counter() - start, run.stdout


def lesson_seconds(log: str, name: str) -> float:
    """Read what a lesson took from sphinx-gallery's summary."""
    found = re.search(rf"{re.escape(name)}:\s+([\d.]+) sec", log)
    if not found:
        raise SystemExit(f"{name} did not run:\n{log[-2000:]}")
    return float(found[1])


def copy_to(folder: Path) -> None:
    """Copy every file that git knows, as it is now."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "site_build", rounds=3)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "site")
        folder.mkdir()
        copy_to(folder)
        cold, log = build(folder)
        lessons = len(re.findall(r"^\s+- .*\.py:\s+[\d.]+ sec", log, re.MULTILINE))
        unchanged = [build(folder)[0] for _ in range(chosen.rounds)]
        changed, own = [], []
        for number in range(chosen.rounds):
            with (folder / "examples" / LESSON).open("a", encoding="utf-8") as file:
                file.write(f"# {number}\n")
            seconds, log = build(folder)
            changed.append(seconds)
            own.append(lesson_seconds(log, LESSON))
    besides = [seconds - lesson for seconds, lesson in zip(changed, own, strict=True)]
    rows = {
        "cold: every page, every lesson run": [cold],
        "unchanged": unchanged,
        f"one lesson changed ({LESSON})": changed,
        "of that, besides running the lesson": besides,
    }
    result = Result(
        "site_build",
        "Time to build the site",
        about(None, "sphinx", "sphinx-gallery", pages_run=lessons, rounds=chosen.rounds),
        [
            ("what", "build", ""),
            ("min", "seconds, min", ".1f"),
            ("median", "median", ".1f"),
            ("max", "max", ".1f"),
        ],
        [
            {"what": what, "min": min(v), "median": statistics.median(v), "max": max(v)}
            for what, v in rows.items()
        ],
    )
    result.claim("unchanged site build / full build", statistics.median(unchanged) / cold, ".3f", "<=", 0.1)
    result.claim(
        "build with one lesson changed, besides running it (s)", statistics.median(besides), ".1f", "<=", 10
    )
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
