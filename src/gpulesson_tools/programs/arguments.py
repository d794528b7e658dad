"""A command line: the options of a command, then a program and its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple


class Program(NamedTuple):
    """A script, or a module, with its own arguments."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Program:
        """Take the words of a command line apart: ``train.py --epochs 3``, or ``-m train --epochs 3``.

        Raises
        ------
        ValueError
            If they name no program.
        """
        is_module = [*words[:1]] == ["-m"]
        name, *others = (words[1:] if is_module else words) or [""]
        if not name:
            raise ValueError("there is no program; expected a script, or -m and the name of a module")
        return cls(name, tuple(others), is_module)

    @property
    def words(self) -> list[str]:
        """The words that start it, behind ``python``."""
        return ["-m"] * self.is_module + [self.name, *self.arguments]


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for the options of a command, which come before the program."""
    usage = f"{prog} [options] (script | -m module) [argument ...]"
    return argparse.ArgumentParser(prog=prog, usage=usage, description=description, allow_abbrev=False)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, Program]:
    """Return the options of a command line, and its program.

    Ends the process with a usage message if there is no program, or an option that the parser does not know.
    Names on standard error the program's arguments that are options of the parser, too.

    Examples
    --------
    >>> from gpulesson_tools.programs.arguments import parse, parser
    >>> reader = parser("python -m gpulesson plan", "Plan.")
    >>> _ = reader.add_argument("--gpu")
    >>> options, program = parse(reader, ["--gpu", "T4", "train.py", "--epochs", "3"])
    >>> options.gpu, program
    ('T4', Program(name='train.py', arguments=('--epochs', '3'), is_module=False))
    """
    own = [word for word in parser._option_string_actions if word.startswith("--")]
    for word in "-m", "program":
        parser.add_argument(word, nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; options: {', '.join(own)}")
    try:
        program = Program.of(options.program if options.m is None else ["-m", *options.m])
    except ValueError as error:
        parser.error(f"{error}, after the options")
    for word in dict.fromkeys(program.arguments):
        if word in own:
            print(f"{word} comes after {program.name}, so it is an option of {program.name}", file=sys.stderr)
    return options, program
