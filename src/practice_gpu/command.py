"""The command ``python -m practice_gpu``: the program runs, unchanged, in a separate Python process.

So it has its own exit status, signals, standard input, ``__main__`` and exit handlers, and it may be anything
that Python itself runs: a script, module, folder, zip file, code, standard input. The practice GPU comes with
PyTorch, as in every other process (:mod:`practice_gpu.arrival`).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from practice_gpu.processes import environment
from practice_gpu.processes.launch import launch
from practice_gpu.sizes import check_count, parse_size


def main(words: Sequence[str] | None = None, prog: str = "python -m practice_gpu") -> int:
    """Run a program with practice GPUs and return its exit status; on POSIX it replaces this process.

    `prog` is the command as the user typed it, for usage and errors; `words` default to ``sys.argv[1:]``.
    """
    parser = _parser(prog)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)} (options of Python itself come first: "
            f"{prog.replace(' ', f' {unknown[0]} ', 1)})"
        )
    program = _program(options, parser.error)
    processes = options.nproc or int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun may have started this
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


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [options] (script | -m module | -c code) [argument ...]",
        description="Run a program as Python does, with simulated CUDA GPUs. Everything after the script or "
        "the module is passed to it.",
        allow_abbrev=False,
    )
    parser.add_argument("--nproc", type=_count, help="run it in this many processes, as torchrun does")
    parser.add_argument("--count", type=_count, help="how many GPUs (default: one for each process)")
    parser.add_argument("--memory", type=_size, default="8 GiB", help='memory of each (default: "8 GiB")')
    parser.add_argument("--report", action="store_true", help="at the end, print a table of copies and waits")
    parser.add_argument("--force", action="store_true", help="simulate although a real GPU is present")
    for option in ("-m", "-c", "program"):
        parser.add_argument(option, nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _program(options: argparse.Namespace, refuse: Any) -> list[str]:
    """Return the arguments with which Python runs the program; refuse what it cannot run."""
    if sys.flags.ignore_environment:
        refuse(
            "Python was started with -E or -I: the practice GPU reaches the program through the environment"
        )
    for option, words in (("-m", options.m), ("-c", options.c)):
        if words is not None:
            return [option, *words] if words else refuse(f"there is nothing after {option}")
    if not options.program:
        refuse("there is nothing to run; expected a script, -m module or -c code after the options")
    script = options.program[0]
    if script != "-" and not Path(script).exists():
        refuse(f"there is no script {script!r} to run with the practice GPU")
    return list(options.program)


def _options_of_python() -> list[str]:
    """Return what comes before ``-m`` on Python's own command line: ``-O``, ``-W error``, …"""
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices from 1 to 16") from None
    return count


def _size(text: str) -> str:
    try:
        parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
