"""The file of a recording: what a named GPU printed for each cell of one lesson, known by the cell's hash.

``docs/recordings/NN_name.json`` holds the texts, one line of output a line; the folder
``docs/recordings/NN_name/`` holds the figures. What is damaged, altered, or of another lesson is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..cells import FOLDED, code_cells

SCHEMA = 1
HASH_LENGTH = 16  # hexadecimal digits
FIGURE = r"\d\d-[0-9a-f]{8}\.webp"
SIMULATED = "simulated"  # the practice GPU has it in its name


# -- the cells of a lesson


@dataclass(frozen=True)
class Cell:
    """One code cell.

    Attributes
    ----------
    line : int
        Where it begins in the script.
    code : str
        As the script has it.
    hash : str
        Of its code and of all code before it in the lesson.
    """

    line: int
    code: str
    hash: str

    @property
    def first_line(self) -> str:
        """Its first line of code, for people."""
        return self.code.strip().split("\n")[0].rstrip()


def read_cells(script: Path) -> list[Cell]:
    """Split a lesson into its code cells, just as sphinx-gallery does."""
    cells = list(code_cells(script))
    hashes = chain(code for _, code in cells)
    return [Cell(line, code, key) for (line, code), key in zip(cells, hashes, strict=True)]


def chain(codes: Iterable[str]) -> Iterator[str]:
    r"""Yield the hash of each cell: SHA-256 over the code so far, its first 16 hexadecimal digits.

    Neither the text between the cells counts, nor blank lines around a cell, nor spaces at the end of a line,
    nor whether a cell is folded.

    Examples
    --------
    >>> list(chain(["a = 1", "b = 2"])) == list(chain(["a = 1  ", "# fold: B\n\nb = 2"]))
    True
    """
    so_far = hashlib.sha256()
    for code in codes:
        lines = [line.rstrip() for line in code.strip("\n").split("\n")]
        lines = lines[1:] if lines[0].startswith(FOLDED) else lines
        so_far.update("\n".join(lines).strip("\n").encode() + b"\0")
        yield so_far.hexdigest()[:HASH_LENGTH]


# -- what a file holds


class RecordingError(ValueError):
    """A recording that cannot be made, or cannot be shown."""


@dataclass(frozen=True)
class Run:
    """The machine of a recording.

    Attributes
    ----------
    gpu : str
        The name that torch gives the first GPU.
    gpu_count : int
    driver : str
        Version of the NVIDIA driver.
    built_for : str
        What torch was built for, such as ``"CUDA 13.2"``.
    torch, torchvision, python, gpulesson, platform : str
        Versions, and the system.
    date : str
        Of the run, in UTC, as ``2026-01-31``.
    """

    gpu: str
    gpu_count: int
    driver: str
    built_for: str
    torch: str
    torchvision: str
    python: str
    gpulesson: str
    platform: str
    date: str


@dataclass(frozen=True)
class Figure:
    """A picture: its file and that file's SHA-256, a text that stands for it, its width in CSS pixels."""

    file: str
    sha256: str
    alt: str
    width: int


@dataclass(frozen=True)
class RecordedCell:
    """What one cell gave.

    Attributes
    ----------
    hash : str
        See `chain`.
    code : str
        The first line of its code, for the reviewer.
    stdout, html : tuple of str
        Lines: what it printed, with the text of its last expression; the HTML of that, if it has any.
    figures : tuple of Figure
    seconds : float
        Wall time, with the GPU's work done.
    peak_memory : int
        Bytes that torch had allocated on the GPU at most.
    """

    hash: str
    code: str
    stdout: tuple[str, ...]
    html: tuple[str, ...]
    figures: tuple[Figure, ...]
    seconds: float
    peak_memory: int


@dataclass(frozen=True)
class Recording:
    """One run of one lesson; `data` names what its data were."""

    lesson: str
    run: Run
    data: tuple[str, ...]
    cells: tuple[RecordedCell, ...]


# -- writing and reading


def to_json(recording: Recording) -> str:
    """Write a recording as the text of its file, with a digest of the content."""
    content = {"schema": SCHEMA, **asdict(recording)}
    whole = {**content, "digest": content_digest(content)}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def content_digest(content: dict[str, Any]) -> str:
    """Digest everything in the file but the digest itself, however it is laid out."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def lines_of(text: str) -> tuple[str, ...]:
    """Split a text as reStructuredText does: no blank lines around it, no spaces at the end of a line."""
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    return tuple(lines.split("\n")) if lines else ()


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
    except (ValueError, RecursionError) as error:
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
    expect(
        bool(re.fullmatch(f"[0-9a-f]{{{HASH_LENGTH}}}", cell.hash)),
        f"{where}: hash",
        cell.hash,
        f"{HASH_LENGTH} hexadecimal digits",
    )
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
