"""The file of a recording: what a named GPU printed for each cell of a lesson, by the cell's hash.

``docs/recordings/NN_name.json`` holds the texts, a line of the file for each line of output; the folder
``docs/recordings/NN_name/`` holds the figures. A recording that is damaged, altered, or of another lesson is
refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..cells import FOLDED, code_cells

SCHEMA = 1
HASH_LENGTH = 16  # hexadecimal digits
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
    """Split a lesson into its code cells, as sphinx-gallery does."""
    cells = list(code_cells(script))
    hashes = chain(code for _, code in cells)
    return [Cell(line, code, key) for (line, code), key in zip(cells, hashes, strict=True)]


def chain(codes: Iterable[str]) -> Iterator[str]:
    r"""Yield the hash of each cell: SHA-256 over the code so far, its first 16 hexadecimal digits.

    The text between cells does not count, nor do blank lines around a cell, spaces at the end of a line, and
    whether a cell is folded.

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
    """A recording cannot be made, or cannot be shown."""


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
    """A picture: its file and that file's SHA-256, its alternative text, its width in CSS pixels."""

    file: str
    sha256: str
    alt: str
    width: int


@dataclass(frozen=True)
class RecordedCell:
    """The output of one cell.

    Attributes
    ----------
    hash : str
        See `chain`.
    code : str
        The first line of its code, for the reviewer.
    stdout, html : tuple of str
        The lines that it printed, with the text of its last expression; the HTML of that, if it has any.
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


# -- what a recorder and a build say likewise, so that they can be compared


def described(figure: Any) -> str:
    """Describe a figure of matplotlib by its titles, and by its legend where that names a device."""
    axes = figure.axes
    legends = [legend for legend in (*(one.get_legend() for one in axes), *figure.legends) if legend]
    words = [figure.get_suptitle(), *(one.get_title() for one in axes)]
    named = [text.get_text() for legend in legends for text in legend.get_texts()]
    if re.search(r"\b(cpu|cuda|mps|xpu)\b", " ".join(named), re.IGNORECASE):
        words += named
    return ", ".join(" ".join(word.split()) for word in words if word) or "figure"


def sources(variables: dict[str, Any]) -> set[str]:
    """Name the data that a lesson has loaded."""
    data = sys.modules.get("gpulesson.data")
    kinds = (data.Images, data.Iris) if data else ()
    return {value.source for value in variables.values() if isinstance(value, kinds)}


# -- writing and reading


def to_json(recording: Recording) -> str:
    """Write a recording as the text of its file, with a digest of the content."""
    content = {"schema": SCHEMA, **asdict(recording)}
    whole = {**content, "digest": content_digest(content)}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def content_digest(content: dict[str, Any]) -> str:
    """Digest everything in the file but the digest itself, whatever its layout."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def lines_of(text: str) -> tuple[str, ...]:
    """Split a text as reStructuredText does: no blank lines around it, no spaces at the end of a line."""
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    return tuple(lines.split("\n")) if lines else ()


def write(recording: Recording, pictures: dict[str, bytes], folder: Path) -> Path:
    """Write the pictures, then the file; remove the pictures of an earlier recording last.

    A picture's name holds a part of its digest, so it overwrites no other: the recording is complete at every
    moment.
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
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        reason = error if isinstance(error, RecordingError) else f"it is not a recording, {error!r:.200}"
        remedy = f"Record it again (nox -s record -- {path.stem}), or remove it and its figures."
        raise RecordingError(f"recording {path.parent.name}/{path.name}: {reason}. {remedy}") from error


def checked(path: Path) -> Recording:
    """Read a file; its digest proves that `write` wrote all of it, so nothing else is checked."""
    content = json.loads(path.read_text(encoding="utf-8"))
    digest, schema = content.pop("digest"), content["schema"]
    expect("its schema", schema, SCHEMA)
    expect("it was edited: its digest", digest, content_digest(content))
    expect("its lesson", content["lesson"], path.stem)
    if SIMULATED in content["run"]["gpu"].lower():
        raise RecordingError(f"its gpu is {content['run']['gpu']!r}; expected a real GPU")
    cells = [made_cell(path.with_suffix(""), **cell) for cell in content["cells"]]
    return Recording(path.stem, Run(**content["run"]), tuple(content["data"]), tuple(cells))


def made_cell(
    folder: Path, figures: list[dict[str, Any]], stdout: list[str], html: list[str], **rest: Any
) -> RecordedCell:
    """Make a cell from its JSON, with figures from the folder."""
    drawn = tuple(Figure(**figure) for figure in figures)
    for figure in drawn:
        path = folder / figure.file
        if not path.is_file():
            raise RecordingError(f"the figure {folder.name}/{path.name} is missing")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        expect(f"the SHA-256 of {path.name}", sha256, figure.sha256)
    return RecordedCell(stdout=tuple(stdout), html=tuple(html), figures=drawn, **rest)


def expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise RecordingError(f"{what} is {found!r:.80}; expected {expected!r:.80}")
