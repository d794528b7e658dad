"""Writes recordings and reads them; refuses by name what is damaged, altered, or of another lesson."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import is_dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args, get_type_hints

from .recording import SCHEMA, RecordedCell, Recording, RecordingError, Run, content_digest, to_json

HASH = r"[0-9a-f]{16}"
FIGURE = r"\d\d-[0-9a-f]{8}\.webp"
SIMULATED = "simulated"  # the practice GPU has it in its name


def write(recording: Recording, pictures: dict[str, bytes], folder: Path) -> Path:
    """Write the pictures, then the file, and remove the pictures of an earlier recording last.

    A picture's name holds a part of its digest, so none takes the place of an old one: a recording is whole
    at every moment.
    """
    place, path = folder / recording.lesson, folder / f"{recording.lesson}.json"
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(picture)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(to_json(recording), encoding="utf-8")
    unfinished.replace(path)
    for old in {file.name for file in place.glob("*")} - pictures.keys():
        (place / old).unlink()
    return path


def load(path: Path) -> Recording:
    """Read and check a recording and its figures.

    Raises
    ------
    RecordingError
        Naming the file, what was found and expected, and the remedy.
    """
    try:
        return checked(path)
    except RecordingError as error:
        remedy = f"Record it again (nox -s record -- {path.stem}), or remove it and its figures."
        raise RecordingError(f"recording {path.parent.name}/{path.name}: {error}. {remedy}") from error


def checked(path: Path) -> Recording:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RecordingError(f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RecordingError(f"it holds a {type(content).__name__}; expected an object")
    schema, digest = content.pop("schema", None), content.pop("digest", None)
    if schema != SCHEMA:
        raise RecordingError(f"its schema is {schema!r}; expected {SCHEMA}")
    recording: Recording = typed(Recording, content, "the file")
    if digest != (found := content_digest({"schema": schema, **content})):
        raise RecordingError(f"it was edited: its digest is {digest!r}, that of its content {found!r}")
    if recording.lesson != path.stem:
        raise RecordingError(f"it is of another lesson, {recording.lesson!r}; expected {path.stem!r}")
    check_run(recording.run)
    for number, cell in enumerate(recording.cells, 1):
        check_cell(cell, f"cell {number} ({cell.code})", path.with_suffix(""))
    return recording


def typed(kind: Any, found: Any, where: str) -> Any:
    """Make a value of `kind`, a dataclass or what its fields are, of parsed JSON."""
    if is_dataclass(kind):
        expect(isinstance(found, dict), where, found, "an object")
        fields = get_type_hints(kind)
        if fields.keys() != found.keys():
            missing, unknown = sorted(fields.keys() - found.keys()), sorted(found.keys() - fields.keys())
            raise RecordingError(
                f"{where} lacks {missing or 'nothing'} and has unknown {unknown or 'nothing'}"
            )
        return kind(**{name: typed(hint, found[name], f"{where}: {name}") for name, hint in fields.items()})  # type: ignore[operator]
    if elements := get_args(kind):  # tuple[element, ...]
        expect(isinstance(found, list), where, found, "a list")
        return tuple(typed(elements[0], item, f"{where} {n}") for n, item in enumerate(found, 1))
    numbers = {float: (int, float)}
    fits = isinstance(found, numbers.get(kind, kind)) and not isinstance(found, bool)
    expect(fits, where, found, f"of type {kind.__name__}")
    return found


def expect(fits: bool, where: str, found: object, expected: str) -> None:
    if not fits:
        raise RecordingError(f"{where} is {found!r:.60}; expected {expected}")


def check_run(run: Run) -> None:
    try:
        date.fromisoformat(run.date)
    except ValueError as error:
        raise RecordingError(f"its date is {run.date!r}; expected one like 2026-01-31") from error
    expect(SIMULATED not in run.gpu.lower(), "its gpu", run.gpu, "a real GPU")


def check_cell(cell: RecordedCell, where: str, folder: Path) -> None:
    expect(bool(re.fullmatch(HASH, cell.hash)), f"{where}: hash", cell.hash, "16 hexadecimal digits")
    expect(math.isfinite(cell.seconds) and cell.seconds >= 0, f"{where}: seconds", cell.seconds, "a time")
    expect(cell.peak_memory >= 0, f"{where}: peak_memory", cell.peak_memory, "bytes")
    for figure in cell.figures:
        expect(
            bool(re.fullmatch(FIGURE, figure.file)),
            f"{where}: file",
            figure.file,
            "a name like 01-0a1b2c3d.webp",
        )
        path = folder / figure.file
        if not path.is_file():
            raise RecordingError(f"{where}: the figure {folder.name}/{figure.file} is missing")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        expect(sha256 == figure.sha256, f"{where}: the SHA-256 of {figure.file}", sha256, figure.sha256)
