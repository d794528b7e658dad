"""A command line that ends with a program: options of the command, a script or module, the program's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for the options of a command, which come before the program."""
    usage = f"{prog} [options] (script | -m module) [argument ...]"
    return argparse.ArgumentParser(prog=prog, usage=usage, description=description, allow_abbrev=False)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of a command line and its program: a script, or ``-m`` and a module, and arguments.

    Ends the process with a usage message if there is no program, or an option that the parser does not know.
    Says on standard error which of the program's arguments are options of the parser, too.

    Examples
    --------
    >>> from gpulesson_tools.programs.arguments import parse, parser
    >>> reader = parser("python -m gpulesson plan", "Plan.")
    >>> _ = reader.add_argument("--gpu")
    >>> options, program = parse(reader, ["--gpu", "T4", "train.py", "--epochs", "3"])
    >>> options.gpu, program
    ('T4', ['train.py', '--epochs', '3'])
    """
    own = [word for word in parser._option_string_actions if word.startswith("--")]
    for word in "-m", "program":
        parser.add_argument(word, nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; options: {', '.join(own)}")
    program = options.program if options.m is None else ["-m", *options.m]
    if program in ([], ["-m"]):
        parser.error("there is no program; expected a script, or -m module, after the options")
    name, behind = (program[0], program[1:]) if options.m is None else (program[1], program[2:])
    for word in dict.fromkeys(behind):
        if word in own:
            print(f"{word} comes after {name}, so it is an option of {name}", file=sys.stderr)
    return options, program
