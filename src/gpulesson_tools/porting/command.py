"""The command ``python -m gpulesson port``: options first, then the script with its own arguments."""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpulesson_tools.programs import arguments
from gpulesson_tools.programs.arguments import Program

if TYPE_CHECKING:
    from gpulesson_tools.porting.port import Port
    from gpulesson_tools.porting.reasons import Change, Files, Verb
    from gpulesson_tools.porting.run import Runs

_SHOWN = 6
_NEXT = "put the changes into your file (--write does it, and keeps the old one),\n"
_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}


def main(words: Sequence[str], prog: str) -> int:
    """Port the script of a command line and print what came of it; 1 if that is nothing to rely on."""
    parser = arguments.parser(
        prog,
        "Run a training script on the practice GPU, fix what its errors say as the lessons do, "
        "and compare its losses with those of the CPU. Prints the difference; writes nothing unless you ask. "
        "Everything after the script is passed to it.",
    )
    parser.add_argument("--write", action="store_true", help="change the file; the old one stays beside it")
    parser.add_argument("--out", type=Path, help="write the difference into this file, for git apply")
    add_options(parser)
    options, program = arguments.parse(parser, words)
    status = 1
    with refusing():
        _check_out(options.out)
        with trial(program, options.limit, options.root) as runs:
            found = _ported(runs)
            coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
            name = Path(runs.name).name
            print("\n".join(report(found, name, coloured, "" if options.write else _NEXT)))
            status = _keep(found, runs.root, options)
    return status


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, help="the folder that is copied for the runs (default: this one)"
    )
    parser.add_argument("--limit", type=_seconds, default=120.0, help="seconds for each run (default: 120)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of seconds, such as 120")
    return seconds


@contextmanager
def refusing() -> Iterator[None]:
    """Print why a script cannot be tried, or that the reader has stopped it."""
    try:
        yield
    except Refused as refusal:
        print(refusal, file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)


class Refused(Exception):
    """The script cannot be tried, and the message says why."""


def _file_of(program: Program) -> Path:
    """Return the file of a script, or of a module in the current folder, as ``python -m`` would find it."""
    if not program.is_module:
        return Path(program.name)
    path = Path(*program.name.split("."))
    choices = path / "__main__.py", path.with_suffix(".py")
    found = [each for each in choices if each.is_file()]
    if not found:
        raise Refused(
            f"There is no module {program.name!r} in this folder: expected {choices[1]} or {choices[0]}. "
            "Go to the folder in which you start it."
        )
    return found[0]


@contextmanager
def trial(
    program: Program, limit: float = 120.0, root: Path | None = None, text: bytes | None = None
) -> Iterator[Runs]:
    """Check a program, and yield what runs it; `text` is that of a script which is not a file.

    Raises
    ------
    Refused
        If it cannot be tried, also out of what is done with it.
    """
    if sys.version_info < (3, 11):
        raise Refused(f"This needs Python 3.11 or newer, and found {sys.version.split()[0]}.")
    from gpulesson_tools.porting.run import NoTrial, Runs

    script = _file_of(program)
    try:
        if text is None:
            if not script.exists():
                raise Refused(f"There is no script {str(script)!r}. It looks in the folder that you are in.")
            if script.suffix != ".py" or not script.is_file():
                raise Refused(f"{script} is not a Python script: expected a file that ends in .py.")
            text = script.read_bytes()
        ast.parse(text, str(script))
        prepared = Runs(script, program, limit, root, text)
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise Refused(
            f"{script} is not Python that can run: {line}{error.args[0]}. Fix that first."
        ) from None
    except (NoTrial, OSError) as reason:
        raise Refused(f"{script.name}: {reason}") from None
    with _ended_by_signals(), prepared as runs:
        try:
            yield runs
        except NoTrial as reason:
            raise Refused(f"{script.name}: {reason}") from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal that ends the command be an exception, so that what is open gets closed."""
    here = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if here and hasattr(signal, name)]
    before = [signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def tell(text: str) -> None:
    """Print what is going on, on standard error."""
    print(f"… {text}", file=sys.stderr, flush=True)


def _ported(runs: Runs) -> Port:
    try:
        import libcst
    except ImportError:
        raise Refused(
            "port needs LibCST, which changes code and keeps its form: python -m pip install libcst"
        ) from None
    from gpulesson_tools.porting.port import port

    try:
        return port(runs, tell)
    except (libcst.ParserSyntaxError, RecursionError) as error:
        for file, text in runs.texts.items():
            if not _readable(text) and _readable(text.expandtabs()):
                raise Refused(
                    f"LibCST, which would change the code, cannot read {file}, where some lines begin with "
                    f"tabs and some with spaces. Let all begin with spaces: expand -i {file} > spaces.py"
                ) from None
        raise Refused(f"LibCST, which would change the code, cannot read it: {error}") from None


def _readable(text: bytes) -> bool:
    import libcst

    try:
        return bool(libcst.parse_module(text))
    except (libcst.ParserSyntaxError, RecursionError):
        return False


def port_cell(line: str, cell: str) -> None:
    """Port the code of a notebook's cell, which begins with ``%%port`` and the script's arguments."""
    try:
        with trial(Program("cell.py", tuple(line.split())), text=cell.encode()) as runs:
            print("\n".join(report(_ported(runs), "This cell")))
    except Refused as refusal:
        print(refusal)


# -- words


def report(found: Port, name: str, coloured: bool = False, first: str = "") -> Iterator[str]:
    """Yield the lines that are printed: the changes, the difference, the proof, what to do then."""
    yield from _headline(found, name)
    if found.stuck and not found.changes:
        return
    yield "\nThe changes (lines as they are numbered afterwards):\n"
    yield from _changes(found)
    yield ""
    yield from _difference(found.files, coloured)
    if not found.stuck:
        yield from _proof(found)
        yield from _not_reached(found)
        if found.proved:
            yield f"\nNext: {first}run it on a GPU, and measure the gain: lesson 8, Was it faster?"


def _headline(found: Port, name: str) -> Iterator[str]:
    """Yield what was proved, and no more."""
    if found.stuck:
        so_far = " The changes below are a part." if found.changes else ""
        yield f"{name} is not ported.{so_far} This could not be fixed (in the file with the changes below):"
        yield f"  {found.stuck}"
    elif not found.proved:
        yield f"{name} runs on the GPU with these changes, but it is not proved that it learns the same."
    elif found.left:
        yield f"{name} is ported in part. This is still computed on the CPU:"
        for spot in found.left:
            code = found.files[spot.file].text.splitlines()[spot.line - 1].decode("utf-8", "replace")
            yield f"  {spot}: {code.strip()}"
    elif found.gpu.stopped or _silent(found):
        yield f"{name} runs on the GPU with these changes, as far as it was tried. Not all of it was reached:"
        yield "see the end of this report."
    else:
        yield f"{name} runs on the GPU with these changes."


def _changes(found: Port) -> Iterator[str]:
    from gpulesson_tools.porting.facts import ACCELERATOR, LESSONS
    from gpulesson_tools.porting.reasons import CHOSEN

    said = ""
    places: dict[tuple[str, int, Verb], list[Change]] = {}
    for change in sorted(found.changes, key=lambda each: (each.file, each.line)):
        places.setdefault((change.file, change.line, change.verb), []).append(change)
    for (file, line, _), (first, *others) in places.items():
        where = f"line {line}" if len(found.files.texts) == 1 else f"{file}, line {line}"
        more = [one.removeprefix("the batch's ") for each in others for one in each.subjects]
        together = first._replace(subjects=tuple(dict.fromkeys([*first.subjects, *more])))
        yield f"{where}: {together.what}. Lesson {first.lesson}, {LESSONS[first.lesson]}"
        if first.verb is CHOSEN:
            yield "    It finds NVIDIA's and AMD's GPUs. To find Apple's and Intel's, too, write after the =:"
            yield f"    {ACCELERATOR}"
        if first.message:
            same = first.message == said
            yield f"    Without it: {'the same message' if same else _short(first.message)}"
            said = first.message


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:199].rsplit(' ', 1)[0]} …"


def difference(files: Files) -> Iterator[bytes]:
    """Yield the lines of the difference, as ``git apply`` takes them."""
    for file, after in sorted(files.texts.items()):
        old, new = (re.findall(rb"[^\n]*\n|[^\n]+", text) for text in (files.originals[file], after))
        name = file.encode()
        for line in difflib.diff_bytes(difflib.unified_diff, old, new, b"a/" + name, b"b/" + name):
            yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _difference(files: Files, coloured: bool) -> Iterator[str]:
    for line in difference(files):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        colour = _COLOURS.get(text[:1], "") if coloured else ""
        yield f"{colour}{text}\033[0m" if colour else text
    yield ""


def _proof(found: Port) -> Iterator[str]:
    from gpulesson_tools.porting.port import STEPS

    yield "The losses of the first steps:\n"
    yield f"  step  {'on the CPU':>14}  {'on the practice GPU':>20}"
    pairs = list(enumerate(zip(found.cpu.losses, found.gpu.losses, strict=False), 1))
    for number, (cpu, gpu) in pairs[:_SHOWN]:
        yield f"  {number:4}  {cpu:14.8g}  {gpu:20.8g}"
    if len(pairs) > _SHOWN:
        yield f"  and {len(pairs) - _SHOWN} more"
    yield ""
    if found.proved:
        if found.differing:
            yield (
                f"They differ from step {found.differing[0]} on, but no more than by rounding: they change "
                "as much\non the CPU if the last digit of each product in the script does."
            )
        else:
            yield f"All {found.steps} are equal to the bit{_printed(found)}."
        if found.gpu.draws:
            yield (
                "The script draws random numbers on the GPU. For this comparison they were those of the CPU; "
                "a GPU draws others,\nso there your losses will differ, as with another seed."
            )
    elif not found.as_many or found.steps < STEPS:
        cpu, gpu = len(found.cpu.losses), len(found.gpu.losses)
        yield f"The script took {cpu} steps on the CPU and {gpu} on the GPU: this proves nothing."
        yield "Do not use these changes as they are."
    elif not found.repeats:
        yield (
            f"They differ from step {found.differing[0]} on. But the script's losses also differ from run to "
            "run on the CPU:\nit draws numbers that no seed fixes. So this proves nothing."
        )
    else:
        yield (
            f"They differ from step {found.differing[0]} on, by more than rounding explains; on the CPU the "
            "script has the\nsame losses in each run. So these changes train something else. "
            "Do not use them as they are."
        )


def _printed(found: Port) -> str:
    cpu, gpu = (each.output.replace(", device='cuda:0'", "").splitlines() for each in (found.cpu, found.gpu))
    if not cpu or found.cpu.stopped or found.gpu.stopped:
        return ""
    other = [(a, b) for a, b in zip(cpu, gpu, strict=False) if a != b]
    if len(cpu) == len(gpu) and not other:
        return ", and the script printed the same"
    if len(cpu) != len(gpu) or not other:
        return f"; it printed {len(gpu)} lines, and {len(cpu)} on the CPU"
    example = f"    {other[0][0]}\n    {other[0][1]}\n(times may differ, and what the device is called)"
    return f". Of {len(cpu)} lines that the script printed, {len(other)} differ, such as\n{example}"


def _not_reached(found: Port) -> Iterator[str]:
    record = found.gpu
    if record.shortened:
        yield "It has many steps. For these runs, loops that train or draw batches ended after a few turns."
    if found.wholes is not None:
        steps = min(len(each.losses) for each in found.wholes)
        equal = "; their losses are equal as well" if found.proved and not found.differing else ""
        yield f"That leaves out some of its lines. So it also ran with whole loops, for {steps} steps{equal}."
    if record.stopped:
        yield f"The run did not reach the script's end: {record.stopped}."
    yield from _loads(found)
    parts = _silent(found)
    if parts:
        more = f" and {len(parts) - 12} more places" if len(parts) > 12 else ""
        yield f"Not reached, so not tried, lines: {', '.join(parts[:12])}{more}."


def _loads(found: Port) -> Iterator[str]:
    from gpulesson_tools.porting.reasons import silent_loads

    for file, ran in sorted(found.gpu.lines.items()):
        for line, _ in silent_loads(found.files, file, ran):
            yield f"{file}, line {line}, loads a file. It may need map_location=device."


def _silent(found: Port) -> list[str]:
    """Return the lines that were not reached."""
    from gpulesson_tools.porting.instrument import not_reached

    parts = []
    for file, ran in sorted(found.gpu.lines.items()):
        for first, last in not_reached(found.files[file].text, ran):
            where = f"{first}" if first == last else f"{first} to {last}"
            parts.append(where if len(found.gpu.lines) == 1 else f"{file}, {where}")
    return parts


# -- files


def _check_out(out: Path | None) -> None:
    if out is not None and os.path.lexists(out):
        raise Refused(f"{out} exists already: take another name for the difference, or remove it")
    if out is not None and not out.parent.is_dir():
        raise Refused(f"there is no folder {out.parent} to write {out.name} into")


def _keep(found: Port, root: Path, options: argparse.Namespace) -> int:
    files, done = found.files, found.proved and not found.left
    part = not done and bool(files.texts) and (found.proved or bool(found.stuck))
    if not done and (options.write or options.out):
        says = "Your file is as it was: this is a part." if part and options.out else "Nothing was written."
        print(says, file=sys.stderr)
    if not (done or part):
        return 1
    if (
        done
        and options.write
        and any((root / file).read_bytes() != files.originals[file] for file in files.texts)
    ):
        print("A file was changed in the meantime. Nothing was written.", file=sys.stderr)
        return 1
    try:
        if options.out is not None:
            with options.out.open("xb") as out:
                out.writelines(difference(files))
            so_far = "" if done else " so far, which is a part,"
            print(f"The difference{so_far} is in {options.out}: git apply {options.out}")
        if options.write and done:
            _write(files, root)
    except OSError as error:
        print(f"{error}. Your script is as it was.", file=sys.stderr)
        return 1
    return 0 if done else 1


def _write(files: Files, root: Path) -> None:
    """Change all files, or none; each is kept beside it as it was."""
    kept = {file: _free(root / file) for file in files.texts}
    for file, path in kept.items():
        shutil.copy2(root / file, path)
    try:
        for file, text in files.texts.items():
            (root / file).write_bytes(text)
    except OSError:
        for file, path in kept.items():
            if (root / file).read_bytes() != files.originals[file]:
                (root / file).write_bytes(files.originals[file])
            path.unlink()
        raise
    for file, path in kept.items():
        print(f"{file} is changed; as it was before it is in {path.name}")


def _free(path: Path) -> Path:
    """Return a name beside a file that no file has."""
    kept, number = path.with_name(f"{path.name}.before-port"), 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.before-port-{number}")
    return kept
