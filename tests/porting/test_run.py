"""What a run keeps away from the reader's folder, and how loops end early."""

from __future__ import annotations

import pytest

from gpulesson.porting import shorten
from gpulesson.porting.child import _make_own
from gpulesson.porting.run import _entries


def test_only_python_is_copied_and_folders_without_it_are_data(tmp_path):
    for name in (
        "train.py",
        "lib/net.py",
        "lib/notes.txt",
        "data/a/b.bin",
        "venv/x.py",
        ".git/hook.py",
        ".data/c.bin",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert _entries(tmp_path) == [
        (".data", "data"),
        ("data", "data"),
        ("lib", "folder"),
        ("lib/net.py", "text"),
        ("lib/notes.txt", "data"),
        ("train.py", "text"),
    ]


def test_what_is_written_to_is_no_link_any_more(tmp_path):
    reader, copy = tmp_path / "reader", tmp_path / "copy"
    for folder in (reader / "data" / "deep", copy):
        folder.mkdir(parents=True)
    (reader / "data" / "deep" / "a.txt").write_text("old")
    (reader / "data" / "b.txt").write_text("old")
    (copy / "data").symlink_to(reader / "data")
    _make_own(copy, copy / "data" / "deep" / "a.txt")
    (copy / "data" / "deep" / "a.txt").write_text("new")
    _make_own(copy, copy / "data" / "fresh.txt")
    (copy / "data" / "fresh.txt").write_text("new")
    assert (reader / "data" / "deep" / "a.txt").read_text() == "old"
    assert sorted(path.name for path in (reader / "data").iterdir()) == ["b.txt", "deep"]
    assert (copy / "data" / "b.txt").read_text() == "old"


@pytest.mark.parametrize(
    "code, turns",
    [
        ("for i in range(100): step()", 8),
        ("while True: step()", 8),
        ("for i in range(100): draw()", 8),
        ("for i in range(100):\n for j in range(100): step()", 3 * 8),
        ("for i in range(100): pass", 0),
        ("for i in range(100):\n i < 5 or step()", 8),
        ("[step() for i in range(20)]", 20),
    ],
)
def test_loops_end_when_enough_was_done_in_them(code, turns):
    counts = [0, 0]

    def step():
        counts[0] += 1

    def draw():
        counts[1] += 1

    shorten.install(lambda: (counts[0], counts[1]))
    space = {"step": step, "draw": draw}
    exec(shorten.compiled(code.encode(), "loops.py"), space)
    assert sum(counts) == turns


def test_shortening_keeps_lines_and_columns():
    code = b"def f():\n    for x in g(1):\n        raise ValueError\n"
    plain, short = compile(code, "f.py", "exec").co_consts[0], shorten.compiled(code, "f.py").co_consts[0]
    places = [{place for place in each.co_positions() if place[2]} for each in (plain, short)]
    assert places[0] <= places[1] and {place[0] for place in places[1]} == {place[0] for place in places[0]}
