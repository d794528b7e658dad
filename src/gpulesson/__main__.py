"""Report this machine's devices, or run a command: the practice GPU, plans, ports, exercises."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[0] == os.getcwd():  # noqa: PTH109  # pathlib comes later
    del sys.path[0]  # `python -m` puts the current folder first, where a random.py would hide Python's

import argparse
from collections.abc import Sequence
from pkgutil import resolve_name

COMMANDS = {
    "practice": ("practice_gpu.command:main", "run a script or a module on a simulated CUDA GPU"),
    "plan": (
        "gpulesson_tools.planning.command:main",
        "say whether a training script fits on a GPU, and how fast it can be at most",
    ),
    "port": (
        "gpulesson_tools.porting.command:main",
        "move a training script from the CPU to a GPU, and check that it learns the same",
    ),
    "review": (
        "gpulesson_tools.porting.review:main",
        "find what is wrong or slow in a training script that uses a GPU",
    ),
    "film": (
        "gpulesson_tools.porting.film:main",
        "write a page that steps through a script: what each line moves, and who waits",
    ),
    "start": ("gpulesson_tools.exercises.commands:start", "copy an exercise's starter into this folder"),
    "check": (
        "gpulesson_tools.exercises.commands:check",
        "call the functions of an exercise, and say what is wrong",
    ),
    "submissions": (
        "gpulesson_tools.exercises.commands:submissions",
        "check a folder of files, one for each learner, and write the reports beside them",
    ),
    "lessons": ("gpulesson_tools.exercises.commands:lessons", "list the exercises, with your progress"),
}
"""By command: the function that gets the rest of the command line and the command's name, and a help text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; without a command, print the device report.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; by default the process's own.

    Returns
    -------
    int
        Exit status: 0 for success.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        run = resolve_name(COMMANDS[words[0]][0])
        return int(run(words[1:], f"python -m gpulesson {words[0]}"))
    parser = argparse.ArgumentParser(prog="python -m gpulesson", description=__doc__)
    commands = parser.add_subparsers(metavar="command")
    commands.add_parser("report", help="print the devices, versions and advice (also without a command)")
    for name, (_, about) in COMMANDS.items():
        commands.add_parser(name, help=about)
    parser.parse_args(words)
    return report()


def report() -> int:
    """Print the device report and the device that the lessons would use; return 1 if it does not exist."""
    from gpulesson.device import DeviceError, choose_device, device_report  # the exercises need no torch

    print(device_report())
    try:
        print(f"\nThe lessons here run on: {choose_device()}")
        print("CUDA code runs without a GPU, on the practice GPU: python -m gpulesson practice script.py")
    except DeviceError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
