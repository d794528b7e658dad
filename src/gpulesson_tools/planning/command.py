"""The command ``python -m gpulesson plan``: options first, then the program with its own arguments."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from gpulesson_tools.planning.hardware.links import NETWORK
from gpulesson_tools.programs import arguments
from gpulesson_tools.programs.arguments import Program


def main(words: Sequence[str], prog: str) -> int:
    """Plan for the program of a command line and print the answer; 1 if there is none."""
    parser = arguments.parser(
        prog,
        "Run a few steps of a training program on the practice GPU, as it is, and work out what "
        "it needs of real ones. The program writes its files as usual, so run it where they may be written. "
        "Everything after the script or the module is passed to it.",
    )
    parser.add_argument(
        "--gpu", help='names of GPUs, with commas between: "T4,A100" (default: some usual ones)'
    )
    parser.add_argument("--steps", type=int, default=3, help="steps to record (default: 3)")
    parser.add_argument("--batch-size", type=int, help="plan for this batch instead of the program's own")
    parser.add_argument(
        "--dry", action="store_true", help="take shapes only: for models too large to compute here"
    )
    parser.add_argument("--json", action="store_true", help="print numbers for other programs")
    parser.add_argument(
        "--picture", type=Path, help="draw the memory over one step into this file (.png, .svg)"
    )
    parser.add_argument(
        "--table", action="append", default=[], help="a CSV file with more GPUs; may be repeated"
    )
    parser.add_argument(
        "--ranks",
        type=_numbers,
        default=(),
        help='plan for this many GPUs, too: "2,8,64", a process for each',
    )
    parser.add_argument("--network", default=NETWORK, help=f"what joins nodes of 8 GPUs (default: {NETWORK})")
    options, program = arguments.parse(parser, words)
    return _run(options, program, prog)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected whole numbers with commas between, such as 2,8,64"
        ) from None


def _run(options: argparse.Namespace, program: Program, prog: str) -> int:
    from gpulesson_tools.planning.plan import GPUS, plan
    from gpulesson_tools.planning.recording.recorded import ProgramFailed

    names = [name.strip() for name in options.gpu.split(",")] if options.gpu else GPUS
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the program's process ends, too
    try:
        answer = plan(
            program.words,
            gpu=names,
            steps=options.steps,
            batch_size=options.batch_size,
            dry=options.dry,
            tables=options.table,
            ranks=options.ranks,
            network=options.network,
        )
        if options.picture is not None:
            answer.plot().figure.savefig(options.picture)
    except KeyboardInterrupt:
        print(f"{prog}: stopped", file=sys.stderr)
        return 130
    except (ValueError, OSError, ProgramFailed) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer.to_json(), indent=1) if options.json else answer)
    return 0
