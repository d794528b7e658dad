"""The file of a recording and the hash of a cell: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from _ext.cells import code_cells
from _ext.recorded.files import (
    Figure,
    RecordedCell,
    Recording,
    RecordingError,
    Run,
    chain,
    lines_of,
    load,
    read_cells,
    write,
)
from projects import ROOT
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

SCRIPTS = sorted(ROOT.glob("examples/[0-9]*.py"))

RUN = Run(
    gpu="Pretended GPU 9000",
    gpu_count=2,
    driver="999.01",
    built_for="CUDA 99.9",
    torch="9.8.7",
    torchvision="0.98.7",
    python="3.99.1",
    gpulesson="0.1.0",
    platform="Linux 9.9",
    date="2026-01-31",
)

# -- the hash of a cell


def test_the_hash_is_of_the_code_so_far():
    first, second = chain(["\na = 1  \n\n", "b = 2\n    c = 3\t\n"])
    assert first == hashlib.sha256(b"a = 1\0").hexdigest()[:16]
    assert second == hashlib.sha256(b"a = 1\0b = 2\n    c = 3\0").hexdigest()[:16]


def cells_of(folder: Path, script: str) -> list[tuple[str, str]]:
    path = folder / "01_x.py"
    path.write_text(f'"""\nTitle\n=====\n"""\n{script}')
    return [(cell.first_line, cell.hash) for cell in read_cells(path)]


def test_prose_does_not_count_and_code_does(tmp_path):
    script = "\na = 1\n\n# %%\n# Text.\n\nb = 2\nprint(b)\n\n# %%\n# More.\n\nc = 3\n"
    before = cells_of(tmp_path, script)
    assert [line for line, _ in before] == ["a = 1", "b = 2", "c = 3"]
    assert cells_of(tmp_path, script.replace("Text.", "Other text,\n# and longer.")) == before
    assert cells_of(tmp_path, script.replace("a = 1\n", "a = 1   \n\n")) == before
    after = cells_of(tmp_path, script.replace("print(b)", "print(a)"))
    assert after[0] == before[0]
    assert [line for line, _ in after] == ["a = 1", "b = 2", "c = 3"]
    assert {key for _, key in after[1:]}.isdisjoint(key for _, key in before)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_cells_are_those_of_sphinx_gallery(script):
    """Which the recorder does without."""
    _, blocks = split_code_and_text_blocks(script)
    theirs = [(block.lineno, block.content) for block in blocks if block.type == "code"]
    assert list(code_cells(script)) == theirs


def test_cells_that_begin_and_end_in_unusual_ways_are_those_of_sphinx_gallery(tmp_path):
    script = tmp_path / "01_x.py"
    rule = "#" * 20
    script.write_text(
        f'# A line above.\n\n"""Title\n\ntext"""\n# a comment\na = 1\n\n{rule} A header\n# Text.\n# More.\n'
        "# %% with words\n#%%\n\n# Text below a gap.\nb = 2  # %% no mark\n\nif b:\n    # %%\n    c = 3\n"
        "# %%\n\n\nd = 4\n#%%\n# Text.\ne = 5\n# %%"
    )
    _, blocks = split_code_and_text_blocks(script)
    theirs = [(block.lineno, block.content) for block in blocks if block.type == "code"]
    assert list(code_cells(script)) == theirs and len(theirs) >= 4


def test_moving_code_to_another_cell_counts():
    assert list(chain(["a = 1", "b = 2"]))[-1] != list(chain(["a = 1\nb = 2"]))[-1]


# -- the file


@pytest.fixture
def recording() -> Recording:
    picture = Figure(f"01-{sha256(b'picture')[:8]}.webp", sha256(b"picture"), "A line", 700)
    cells = (
        RecordedCell("0123456789abcdef", "a = 1", (), (), (), 0.5, 0),
        RecordedCell(
            "fedcba9876543210", "plot()", ("one", "", "  “two” → 3"), ("<b>x</b>",), (picture,), 2.25, 1024
        ),
    )
    return Recording("01_x", RUN, ("iris",), cells)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def file(recording, tmp_path) -> Path:
    (picture,) = recording.cells[1].figures
    return write(recording, {picture.file: b"picture"}, tmp_path / "recordings")


def test_what_is_written_is_read_again(recording, file):
    assert load(file) == recording


def test_a_new_recording_replaces_the_figures_of_the_old(recording, file):
    picture = Figure(f"01-{sha256(b'other')[:8]}.webp", sha256(b"other"), "A line", 700)
    cells = (recording.cells[0], replace(recording.cells[1], figures=(picture,)))
    write(replace(recording, cells=cells), {picture.file: b"other"}, file.parent)
    assert [path.name for path in (file.parent / "01_x").iterdir()] == [picture.file]
    assert load(file).cells == cells
    assert sorted(path.name for path in file.parent.iterdir()) == ["01_x", "01_x.json"]


def edit(change, *, seal: bool = False):
    """Change the parsed file; `seal` gives it the digest that fits."""

    def edited(file: Path) -> None:
        content = json.loads(file.read_text())
        change(content)
        if seal:
            content.pop("digest")
            digest = sha256(json.dumps(content, sort_keys=True).encode())
            content["digest"] = digest
        file.write_text(json.dumps(content))

    return edited


def second(content):
    return content["cells"][1]


DAMAGES = {
    "no file": (lambda f: f.unlink(), "it is not a recording, FileNotFoundError"),
    "half a file": (lambda f: f.write_text(f.read_text()[:200]), "it is not a recording, JSONDecodeError"),
    "not text": (lambda f: f.write_bytes(b"\xff\xfe\x00"), "it is not a recording, UnicodeDecodeError"),
    "a list": (lambda f: f.write_text("[]"), "it is not a recording, TypeError"),
    "another schema": (edit(lambda c: c.update(schema=2), seal=True), "its schema is 2; expected 1"),
    "a key is missing": (edit(lambda c: c["run"].pop("driver"), seal=True), "argument: 'driver'"),
    "an unknown key": (edit(lambda c: second(c).update(colour=1), seal=True), "argument 'colour'"),
    "another lesson": (
        edit(lambda c: c.update(lesson="02_y"), seal=True),
        "its lesson is '02_y'; expected '01_x'",
    ),
    "an edited output": (
        edit(lambda c: second(c).update(stdout=["9.9"])),
        "it was edited: its digest is ",
    ),
    "the practice GPU": (
        edit(lambda c: c["run"].update(gpu="Practice GPU (simulated on the CPU)"), seal=True),
        "its gpu is 'Practice GPU (simulated on the CPU)'; expected a real GPU",
    ),
    "a lost figure": (lambda f: next((f.parent / "01_x").iterdir()).unlink(), "the figure 01_x/01-"),
    "another figure": (
        lambda f: next((f.parent / "01_x").iterdir()).write_bytes(b"PICTURE"),
        f"SHA-256 of 01-{sha256(b'picture')[:8]}.webp is '{sha256(b'PICTURE')[:20]}",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_recording_is_refused_by_name(file, damage):
    do, message = DAMAGES[damage]
    do(file)
    with pytest.raises(RecordingError) as refusal:
        load(file)
    text = str(refusal.value)
    assert text.startswith("recording recordings/01_x.json: ")
    assert text.endswith("Record it again (nox -s record -- 01_x), or remove it and its figures.")
    assert message in text


def test_texts_are_split_as_a_page_splits_them():
    assert lines_of("\n\none  \n\n  two\rthree\n\n") == ("one", "", "  two", "three")
    assert lines_of(" \n") == ()
