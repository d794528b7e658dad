"""No damage loads, and what stands beside it is found: flips, cuts, clocks, two writers, a full disk."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import warnings
from datetime import datetime, timedelta, timezone

import pytest
from autosave_run import digest, noisy_parts
from runs import left
from torch import nn

from gpulesson.checkpoint import CheckpointError, latest, load_checkpoint, save_checkpoint, saving

pytestmark = pytest.mark.slow  # each try is a process

WIDTHS = (2, 60, 400, 4000)  # files of some 15 kB to 1.4 MB


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """The content of genuine checkpoints of several sizes."""
    folder = tmp_path_factory.mktemp("sizes")
    return [
        save_checkpoint(folder / f"{width}.safetensors", epoch=1, **noisy_parts(width=width)).read_bytes()
        for width in WIDTHS
    ]


def silent(path):
    """Load a damaged file; say so if nothing is said."""
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        return "" if str(path) in str(error) else f"{error} does not name the file"
    return f"{path} was loaded"


def test_flipped_bits(tally, sizes, tmp_path):
    chance, path = random.Random(0), tmp_path / "a.safetensors"
    shares = (0.4, 0.3, 0.2, 0.1)  # of the tries: a large file takes longer
    for content, share in zip(sizes, shares, strict=True):
        path.write_bytes(content)
        load_checkpoint(path)  # what is not damaged does load
        with path.open("r+b", buffering=0) as file:
            for _ in range(tally.some(round(tally.row.least * share))):
                place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
                os.pwrite(file.fileno(), bytes([content[place] ^ bit]), place)
                found = silent(path)
                tally.count(found and f"{found}: bit {bit} of byte {place} of {len(content)}")
                os.pwrite(file.fileno(), content[place : place + 1], place)
        assert path.read_bytes() == content


def test_truncated_files(tally, sizes, tmp_path):
    path = tmp_path / "a.safetensors"
    for content in sizes:
        for part in tally.pick(range(200)):
            path.write_bytes(content[: len(content) * part // 200])
            found = silent(path)
            tally.count(found and f"{found}: {part} of 200 parts of {len(content)} bytes")


def test_newest_damaged(tally, tmp_path):
    paths = [save_checkpoint(tmp_path / f"{n}.safetensors", epoch=n, **noisy_parts()) for n in (1, 2, 3)]
    content = paths[2].read_bytes()
    for part in tally.pick(range(200)):
        paths[2].write_bytes(content[: len(content) * part // 200])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = latest(tmp_path)
        named = any(str(paths[2]) in str(warning.message) for warning in caught)
        tally.count("" if found == paths[1] and named else f"{part} of 200: {found}, {len(caught)} warnings")


def test_clock_steps(tally, tmp_path, monkeypatch):
    """A run saves a few times while its clock is set to any other; its files get any other date."""
    chance = random.Random(0)

    class Clock(datetime):
        step = timedelta()

        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + cls.step

    assert saving.datetime is datetime, "the clock is read otherwise now: this test has to follow"
    monkeypatch.setattr(saving, "datetime", Clock)
    for number in range(tally.some(tally.row.least)):
        folder, parts = tmp_path / str(number), {"model": nn.Linear(1, 1)}
        epochs = range(1, chance.randint(2, 5))
        for epoch in epochs:
            Clock.step = timedelta(seconds=chance.choice([0, 1, -1, 1e3, -1e3, 1e8, -1e9]) * chance.random())
            path = save_checkpoint(folder / f"{chance.random()}.safetensors", epoch=epoch, **parts)
            when = datetime.now(timezone.utc).timestamp() + chance.uniform(-1e9, 1e6)
            os.utime(path, (when, when))
        found = load_checkpoint(latest(folder)).epoch
        tally.count("" if found == epochs[-1] else f"run {number}: {found} is the latest of {list(epochs)}")
        shutil.rmtree(folder)


def test_two_writers(tally, warm, tmp_path):
    save_checkpoint(tmp_path / "a.safetensors", epoch=1, **noisy_parts(seed=1))
    expected = {seed: digest(noisy_parts(seed=seed)["model"].state_dict()) for seed in (1, 2)}
    writers = [warm.start("runs:write_for_ever", str(tmp_path), seed, folder=tmp_path) for seed in (1, 2)]
    assert [writer.stdout.readline() for writer in writers] == ["begun\n"] * 2
    seen = set()
    try:
        while tally.of < tally.some(tally.row.least) or (len(seen) < 2 and tally.of < 5000):
            found = load_checkpoint(tmp_path / "a.safetensors")
            seen.add(found.epoch)
            whole = digest(dict(found.model)) == expected[found.epoch]
            tally.count(
                "" if whole and latest(tmp_path) == tmp_path / "a.safetensors" else "what is there is mixed"
            )
    finally:
        for writer in writers:
            os.kill(writer.pid, signal.SIGTERM)
        outputs = [writer.communicate()[0] for writer in writers]
    assert seen == {1, 2}, "one writer wrote nothing"
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    assert not left(tmp_path, "a.safetensors")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB, and a function that leaves so many bytes of it free; None: not to be had."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "gpulesson-tests", str(disk)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk(tally, tmp_path, small_disk):
    parts = noisy_parts(width=2000)
    size = save_checkpoint(tmp_path / "whole.safetensors", epoch=1, **parts).stat().st_size
    folder = small_disk or tmp_path
    path = folder / "a.safetensors"
    tally.notes.append("on a small file system" if small_disk else "with a limit to the size of files")
    saved = 0
    for room in tally.pick([size * step // 90 for step in range(110)]):
        path.unlink(missing_ok=True)
        save_checkpoint(path, epoch=1, model=nn.Linear(1, 1))
        old = path.read_bytes()
        error = None
        with no_more_than(room, small_disk):
            try:
                save_checkpoint(path, epoch=2, **parts)
            except CheckpointError as caught:
                error = caught
        if error:
            wrong = path.read_bytes() != old or str(path) not in str(error)
        else:
            saved += 1
            wrong = load_checkpoint(path).epoch != 2
        save_checkpoint(path, epoch=3, model=nn.Linear(1, 1))
        litter = left(folder, "a.safetensors", *([] if small_disk else ["whole.safetensors"]))
        tally.count(f"{room} bytes free: {error} {litter}" if wrong or litter else "")
    tally.notes.append(f"{saved} had enough room")


class no_more_than:
    """Within it, so many bytes can be written: the rest of the disk is filled, or files are limited."""

    def __init__(self, room, disk):
        self.room, self.disk = room, disk

    def __enter__(self):
        if self.disk:
            self.filler = self.disk / "filler"
            free = os.statvfs(self.disk)
            self.filler.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - self.room)))
        else:
            self.handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.room, self.limits[1]))

    def __exit__(self, *_):
        if self.disk:
            self.filler.unlink()
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)
            signal.signal(signal.SIGXFSZ, self.handler)
