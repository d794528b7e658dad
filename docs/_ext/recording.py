"""The file of a recording: what a named GPU printed for each cell of one lesson.

``docs/recordings/NN_name.json`` holds the texts, one line of output a line; the folder
``docs/recordings/NN_name/`` holds the figures. recording_files.py reads and checks them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 1


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
        See `lesson_cells.chain`.
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
