"""Record the output of the lessons on this machine's GPU, for the site.

python docs/record.py [lesson ...]

Writes docs/recordings/NN_name.json, and the figures into docs/recordings/NN_name/; docs/measured.rst has the
next steps. It needs what the lessons need.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _ext.recorded.files import RecordingError, load
from _ext.recorded.run import present_gpu, record

from gpulesson._hardware import nvidia_smi

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def chosen(names: Sequence[str]) -> list[Path]:
    """Find lessons by the start of their names, such as `05`; without names, take all."""
    unknown = [name for name in names if not any(path.name.startswith(name) for path in LESSONS)]
    if unknown:
        known = ", ".join(path.stem for path in LESSONS)
        raise RecordingError(f"no lesson begins with {' or '.join(unknown)}; there are {known}")
    return [path for path in LESSONS if not names or path.name.startswith(tuple(names))]


def other_programs() -> list[str]:
    """Name the programs that compute on this machine's GPUs, besides this one and the one that started it."""
    ours = {str(os.getpid()), str(os.getppid())}
    lines = nvidia_smi("--query-compute-apps=pid,process_name")
    return [line for line in lines if line and line.partition(",")[0].strip() not in ours]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="record.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lessons", nargs="*", help="such as 05, or 05_fashion_mnist; all if none is named")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "recordings", help="another folder")
    parser.add_argument(
        "--rehearse", action="store_true", help="on a practice GPU, too; no site shows the result"
    )
    parser.add_argument("--beside-others", action="store_true", help="while others use a GPU, too")
    options = parser.parse_args(arguments)
    os.environ["GPULESSON_DEVICE"] = "cuda"
    try:
        scripts, run = chosen(options.lessons), present_gpu(options.rehearse)
        if others := [] if options.beside_others or options.rehearse else other_programs():
            raise RecordingError(
                f"other programs use this machine's GPUs: {'; '.join(others)}. Times measured beside "
                "them are wrong for everybody else: end them, or say --beside-others. Nothing was recorded."
            )
        if len(scripts) > 1:  # a process each: an error of CUDA's ends a process's use of the GPU
            flags = [text for text in arguments or sys.argv[1:] if text not in options.lessons]
            commands = [[sys.executable, __file__, *flags, script.stem] for script in scripts]
            return max(abs(subprocess.run(command).returncode) for command in commands)
        print(f"{run.gpu}, torch {run.torch}, {run.built_for}, driver {run.driver}")
        path = record(scripts[0], options.into.absolute(), run, ROOT)
        data = "a rehearsal" if options.rehearse else ", ".join(load(path).data) or "no data"
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"recorded {os.path.relpath(path, ROOT)} ({data})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
