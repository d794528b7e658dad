"""The command ``python -m gpulesson practice``: the program runs in a Python of its own, as it is.

So it has its own exit status, signals, standard input, ``__main__``, ends and beginnings; and all that Python
itself runs: scripts, modules, folders, zip files, code, standard input. The practice GPU comes with PyTorch,
as in every other process (:mod:`gpulesson.practice.arrival`).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpulesson.practice.processes import environment
from gpulesson.practice.processes.launch import launch
from gpulesson.practice.sizes import check_count, parse_size

_USAGE = "python -m gpulesson practice [options] (script | -m module | -c code) [argument ...]"
_WITH_VALUE = ("--memory", "--count", "--nproc")


def add(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "practice",
        help="run a script or a module on a simulated CUDA GPU",
        usage=_USAGE,
        description="Run a program as Python does, with simulated CUDA GPUs. All that stands behind the "
        "script or the module is the program's.",
        allow_abbrev=False,
    )
    parser.add_argument("--nproc", type=_count, help="run it in so many processes, as torchrun does")
    parser.add_argument("--count", type=_count, help="how many GPUs (default: one for each process)")
    parser.add_argument("--memory", type=_size, default="8 GiB", help='memory of each (default: "8 GiB")')
    parser.add_argument("--report", action="store_true", help="in the end, print a table of copies and waits")
    parser.add_argument("--force", action="store_true", help="simulate although a real GPU is present")
    parser.set_defaults(refuse=parser.error)
    return parser


def split(words: Sequence[str], with_value: Sequence[str] = _WITH_VALUE) -> tuple[list[str], list[str]]:
    """Split what stands behind a command into its options, of which some have a value, and the program."""
    position = 0
    while position < len(words) and (words[position].startswith("--") or words[position] == "-h"):
        position += 2 if words[position] in with_value else 1
    return list(words[:position]), list(words[position:])


def run(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Run the program, instead of this one where the system can do that; return its exit status."""
    _check(program, options.refuse)
    processes = options.nproc or int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # this may be one of torchrun's
    count = options.count or processes
    text = environment.settings(options.memory, count, options.force, options.report)
    surroundings = environment.with_practice_gpu(text, os.environ)
    command = [sys.executable, *_options_of_python(), *program]
    if options.nproc:
        return launch(options.nproc, command, surroundings)
    if os.name == "posix":
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, command, surroundings)
    return subprocess.run(command, env=surroundings).returncode


def _check(program: Sequence[str], refuse: Any) -> None:
    if sys.flags.ignore_environment:
        refuse(
            "Python was started with -E or -I: the practice GPU reaches the program through the environment"
        )
    if not program:
        refuse("there is nothing to run; expected a script, -m module or -c code behind the options")
    first, *others = program
    if first in ("-m", "-c"):
        if not others:
            refuse(f"there is nothing behind {first}")
    elif first.startswith("-") and first != "-":
        known = "--nproc, --count, --memory, --report and --force"
        refuse(f"{first} is not an option: there are {known}; Python's own come before: python {first} -m …")
    elif first != "-" and not Path(first).exists():
        refuse(f"there is no script {first!r} to run with the practice GPU")


def _options_of_python() -> list[str]:
    """Return what stands before ``-m`` on Python's own command line: ``-O``, ``-W error``, …"""
    options: list[str] = []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word.startswith(("-m", "-c")):
            break
        options.append(word)
        if word in ("-W", "-X"):
            options.append(next(words))
    return options


def _count(text: str) -> int:
    try:
        count = int(text)
        check_count(count)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices from 1 to 16") from None
    return count


def _size(text: str) -> str:
    try:
        parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
