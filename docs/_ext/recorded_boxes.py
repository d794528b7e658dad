"""The output of a cell as nodes: that of this build under its label, and the box with that of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from docutils import nodes

from .recording import Figure, RecordedCell, Recording, lines_of

UNITS = ("bytes", "KiB", "MiB", "GiB")


def this_build(machine: str, live: Sequence[nodes.Node]) -> nodes.container:
    """Put a label on what this build's machine gave."""
    return nodes.container("", label("Output of this build", machine), *live, classes=["live"])


def recorded_box(
    recording: Recording, cell: RecordedCell, live: Sequence[nodes.Node]
) -> nodes.container | None:
    """Show what the GPU gave, or say that it was the same; None if it gave nothing either."""
    if not (cell.stdout or cell.html or cell.figures):
        return box(recording, nodes.paragraph("", "This cell printed nothing there.")) if live else None
    measured = f"Wall time {duration(cell.seconds)}"
    if cell.peak_memory:
        measured += f", peak GPU memory {size(cell.peak_memory)}"
    content = (
        [nodes.paragraph("", "It printed the same.")] if same(cell, live) else shown(recording.lesson, cell)
    )
    return box(recording, *content, nodes.paragraph("", measured, classes=["measured"]))


def outdated_box(recording: Recording) -> nodes.container:
    """Say that there is a recording, of other code than this."""
    text = "The recorded output is out of date: this cell, or one above it, has changed since."
    return box(recording, nodes.paragraph("", text), classes=["outdated"])


def box(recording: Recording, *content: nodes.Node, classes: Sequence[str] = ()) -> nodes.container:
    run = recording.run
    head = label("Recorded", f"{run.gpu}, PyTorch {run.torch}, {run.date}")
    return nodes.container("", head, *content, classes=["recorded", *classes])


def label(text: str, machine: str) -> nodes.paragraph:
    whole = f"{text}: {machine}" if machine else text
    return nodes.paragraph(whole, whole, classes=["machine"])


def shown(lesson: str, cell: RecordedCell) -> list[nodes.Node]:
    """Show figures, text and HTML in sphinx-gallery's order and dress."""
    found = [picture(lesson, figure) for figure in cell.figures]
    if cell.stdout:
        text = "\n".join(cell.stdout)
        found.append(nodes.literal_block(text, text, language="none", classes=["sphx-glr-script-out"]))
    if cell.html:
        html = "\n".join(cell.html)
        found.append(nodes.raw("", f'<div class="output_html">\n{html}\n</div>', format="html"))
    return found


def picture(lesson: str, figure: Figure) -> nodes.Node:
    uri, width = f"/recordings/{lesson}/{figure.file}", f"{figure.width}px"
    return nodes.image("", uri=uri, alt=figure.alt, width=width, classes=["sphx-glr-single-img"])


def same(cell: RecordedCell, live: Sequence[nodes.Node]) -> bool:
    """Tell whether this build and the GPU gave the same, and only text."""
    texts = [lines_of(node.astext()) for node in live if isinstance(node, nodes.literal_block)]
    return texts == [cell.stdout] and len(live) == 1 and not (cell.html or cell.figures)


def size(count: int) -> str:
    """Write a number of bytes.

    Examples
    --------
    >>> size(512), size(3 * 2**20)
    ('512 bytes', '3.0 MiB')
    """
    power = min(max(count.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{count / 1024**power:.1f} {UNITS[power]}" if power else f"{count} bytes"


def duration(seconds: float) -> str:
    """Write a time.

    Examples
    --------
    >>> duration(0.0004), duration(0.25), duration(71.23)
    ('under 0.001 s', '0.250 s', '71.2 s')
    """
    if seconds < 0.001:
        return "under 0.001 s"
    return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s"
