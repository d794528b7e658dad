"""Run ``python -m gpulesson``: this machine's devices, the practice GPU, plans, ports, exercises."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[0] == os.getcwd():  # noqa: PTH109  # pathlib comes later
    del sys.path[0]  # `python -m` puts the reader's folder first: a random.py there is not Python's

import argparse
from collections.abc import Sequence

from gpulesson.exercises import commands as exercise_commands
from gpulesson.planning import command as plan_command
from gpulesson.porting import command as port_command
from gpulesson.porting import review
from gpulesson.practice import command as practice_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; without a command, print the device report.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; by default the process's own.

    Returns
    -------
    int
        Exit status: 0 if all went well.
    """
    parser = argparse.ArgumentParser(prog="python -m gpulesson", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("report", help="print the devices, versions and advice (also without a command)")
    practice_command.add(commands)
    plan_command.add(commands)
    port_command.add(commands)
    review.add(commands)
    exercise_commands.add(commands)
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: list[str] = []
    if words[:1] == ["practice"]:
        words[1:], program = practice_command.split(words[1:])
    elif words[:1] == ["plan"]:
        words[1:], program = plan_command.split(words[1:])
    elif words[:1] in (["port"], ["review"]):
        words[1:], program = port_command.split(words[1:])
    options, unknown = parser.parse_known_args(words)
    if unknown:
        getattr(options, "refuse", parser.error)(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command in ("check", "start", "submissions", "lessons"):
        return exercise_commands.run(options)
    if options.command == "practice":
        return practice_command.run(options, program)
    if options.command == "plan":
        return plan_command.run(options, program)
    if options.command == "port":
        return port_command.run(options, program)
    if options.command == "review":
        return review.run(options, program)
    return report()


def report() -> int:
    """Print the device report and the device that the lessons would choose; 1 if that device is not there."""
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
