"""How much longer `import gpulesson` takes than `import torch`.

    python benchmarks/import_time.py [--rounds 15]

Each import is timed inside a fresh process, from the first line to the last, without the start of Python. In
every round each runs twice, in turns A B C C B A. "The package" is every module that the lessons import.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from measuring import SPREAD, Result, about, options, spread

MODULES = "device data models training capture evaluation timing checkpoint"
IMPORTS = {
    "import torch": "import torch",
    "import gpulesson": "import gpulesson",
    "the package": "import torch, " + ", ".join(f"gpulesson.{name}" for name in MODULES.split()),
}
TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds(statement: str) -> float:
    """Run one import in a fresh process."""
    run = subprocess.run(
        [sys.executable, "-c", TIMED.format(statement)], capture_output=True, text=True, check=True
    )
    return float(run.stdout)


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "import_time", rounds=15)
    for statement in IMPORTS.values():
        seconds(statement)  # files that were never read, and bytecode that was never written
    found: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(chosen.rounds):
        for name in [*IMPORTS, *reversed(IMPORTS)]:
            found[name].append(seconds(IMPORTS[name]))
    pairs = {name: [sum(two) / 2 for two in zip(v[::2], v[1::2], strict=True)] for name, v in found.items()}
    torch_alone = pairs["import torch"]
    rows = [
        {
            "what": name,
            "seconds": statistics.median(values),
            **spread(value / alone for value, alone in zip(values, torch_alone, strict=True)),
        }
        for name, values in pairs.items()
    ]
    columns = [("what", "import", ""), ("seconds", "seconds, median", ".2f"), *SPREAD]
    result = Result(
        "import_time",
        "Time of an import, against `import torch`",
        about(rounds=chosen.rounds),
        columns,
        rows,
        notes=["min, median and max are of the ratios to `import torch` in the same round."],
    )
    result.claim("`import gpulesson` / `import torch`", rows[1]["median"], ".3f", "<=", 1.05)
    result.claim("importing all that lessons use / `import torch`", rows[2]["median"], ".3f", "<=", 1.05)
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
