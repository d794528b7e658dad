"""No file runs code or exhausts the machine, whatever it holds: it is refused, in plain words."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import re
import shutil
import subprocess
import zipfile
from itertools import chain, islice
from pathlib import Path

import hostile
import mutated
import pytest
import uses
from autosave_run import noisy_parts

from gpulesson.checkpoint import save_checkpoint

MEGABYTES, SECONDS = 100, 2.0  # allowed beyond the file's own size

pytestmark = pytest.mark.slow


@pytest.fixture
def genuine(tmp_path):
    """The bytes of a checkpoint."""
    return save_checkpoint(tmp_path / "genuine" / "a.safetensors", epoch=1, **noisy_parts()).read_bytes()


def test_hostile_checkpoints(tally, warm, genuine, tmp_path):
    worst = [0.0, 0.0]
    code, special = tmp_path / "code", tmp_path / "special"
    special.mkdir()
    cases = list(chain(hostile.code(genuine), hostile.bombs(genuine), hostile.special_files(special)))
    for number, (what, content) in enumerate(tally.pick(cases)):
        path = content
        if not isinstance(content, Path):
            path = code / str(number) / "a.safetensors"
            path.parent.mkdir(parents=True)
            path.write_bytes(content() if callable(content) else content)
        tally.count(attempt(warm, "runs:read_checkpoint", what, path, path, worst))
        if path is not content:
            path.unlink()
    tally.notes.append(f"at most {worst[0]:.0f} MB and {worst[1]:.1f} s of processor time for one file")


def test_mutated_files(tally, warm, tmp_path):
    """One value, key or container of a file of each kind is another. What is read is used, for some steps."""
    genuine, changed = [], []
    for kind, (save, _, runs) in uses.KINDS.items():
        for run in runs:
            (folder := tmp_path / f"{kind}, {run}" / "genuine").mkdir(parents=True)
            path = save(folder, run)
            genuine.append((f"{kind}, {run}, genuine", path, path.read_bytes))
            changed.append(changed_ones(kind, run, path))
    cases, notes = chain(genuine, mutated.by_turns(changed)), {"used": 0, "slowest": 0.0}
    number = max(len(genuine) + 4, tally.some(tally.row.least))
    for first in range(0, number, 200):
        use_in_children(tally, warm, tmp_path / "cases", islice(cases, min(200, number - first)), notes)
    tally.notes.append(
        f"{notes['used']} could be used, {tally.of - notes['used']} were refused; at most "
        f"{notes['slowest']:.1f} s of processor time for one file"
    )


def changed_ones(kind, run, path):
    for what, content in mutated.mutations(path.read_bytes(), random.Random(f"{kind} {run}")):
        yield f"{kind}, {run}, {what}", path, content


def use_in_children(tally, warm, folder, cases, notes):
    """Use files in one process, and after a crash the rest of them in another."""
    texts = {}
    for number, (text, path, content) in enumerate(cases):
        shutil.copytree(path.parent, folder / str(number) / path.parent.name)
        (folder / str(number) / path.parent.name / path.name).write_bytes(content())
        (folder / str(number) / "about").write_text(f"{text}\n{path.parent.name}/{path.name}")
        texts[str(number)] = text
    while left := os.listdir(folder):  # noqa: PTH208
        child = warm.start("uses:use_many", str(folder), folder=folder.parent)
        output = child.communicate()[0]
        for name, seconds, told in re.findall(r"^told (\d+) (\S+) (.*)$", output, re.MULTILINE):
            text = texts[name]
            notes["used"] += told == "used"
            notes["slowest"] = max(notes["slowest"], float(seconds))
            fine = told == "used" or (told.startswith("refused") and not text.endswith("genuine"))
            tally.count("" if fine else f"{text}: {told}")
        begun = re.findall(r"^begins (\d+)$", output, re.MULTILINE)
        if not begun:
            raise AssertionError(f"nothing was read: {output[-1000:]}")
        if begun[-1] in left and (folder / begun[-1]).exists():
            tally.count(f"{texts[begun[-1]]}: the process ended with {child.returncode}: {output[-300:]}")
            shutil.rmtree(folder / begun[-1])


def attempt(warm, program, what, place, path, worst):
    """Read a file in a process of its own; say what went wrong."""
    folder = place if place.is_dir() and place != path else place.parent
    child = warm.start(program, os.fspath(place).encode("utf-8", "surrogateescape").hex(), folder=folder)
    try:
        output = child.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        return f"{what}: no end"
    told = [line[5:] for line in output.splitlines() if line.startswith("told ")]
    if not told:
        return f"{what}: exit {child.returncode} {output[-300:]}"
    *words, megabytes, seconds = told[-1].split()
    size = path.stat().st_size / 2**20 if path.is_file() else 0
    worst[:] = max(worst[0], float(megabytes) - size), max(worst[1], float(seconds))
    if (folder / hostile.MARK).exists():
        return f"{what}: it was executed"
    if words != ["refused"]:
        return f"{what}: {' '.join(words)}"
    if float(megabytes) > size + MEGABYTES or float(seconds) > SECONDS:
        return f"{what}: {megabytes} MB, {seconds} s for a file of {size:.0f} MB"
    return ""


def test_the_code_would_run_where_it_is_not_refused(genuine, tmp_path, monkeypatch):
    """The control: without it, "0 executed" would say nothing."""
    monkeypatch.chdir(tmp_path)
    ran = []
    for what, content in hostile.code(genuine):
        if re.search("hub|timeit", what):
            continue
        with contextlib.suppress(Exception):
            if content.startswith(b"PK"):
                content = zipfile.ZipFile(io.BytesIO(content)).read("archive/data.pkl")
            pickle.loads(content)
        if Path(hostile.MARK).exists():
            Path(hostile.MARK).unlink()
            ran.append(what)
    assert len(ran) >= 50, ran
