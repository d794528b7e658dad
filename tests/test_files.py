"""Files are written whole or not at all, parts of dead writers go, and only what is a file is opened."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpulesson import _files
from gpulesson._files import open_file, printable, read_file, whole_file

posix = pytest.mark.skipif(os.name != "posix", reason="needs locks, pipes and devices of POSIX")


def write(path, content=b"new"):
    with whole_file(path) as file:
        file.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def leave_a_part(folder, *, alive=False):
    """Start a process that begins to write there; return its part, and the process if it is to live."""
    code = (
        "import sys\nfrom gpulesson._files import whole_file\n"
        "with whole_file(sys.argv[1]) as file:\n"
        "    print(file.name, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, folder / "theirs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    part = Path(process.stdout.readline().decode().strip())
    if not alive:
        process.kill()
        process.communicate()
    return part, process


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "new" / "a"
    write(path, b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert Path(file.name).parent == path.parent
    assert path.read_bytes() == b"new"
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error), whole_file(path) as file:
            file.write(b"third")
            raise error
        assert path.read_bytes() == b"new"
    assert names(path.parent) == ["a"]


@posix
def test_parts_of_dead_writers_are_swept_and_those_of_live_ones_are_not(tmp_path):
    dead, _ = leave_a_part(tmp_path)
    alive, process = leave_a_part(tmp_path, alive=True)
    assert not dead.exists() and alive.exists()  # the second writer swept the first's
    others = [".gpulesson-.part", ".gpulesson-0123456789abcdef.part2", "a.part"]
    for name in others:
        (tmp_path / name).touch()
    with whole_file(tmp_path / "mine") as mine:
        write(tmp_path / "other")  # as another thread would
        assert Path(mine.name).exists()
    assert names(tmp_path) == sorted([alive.name, "mine", "other", *others])
    process.communicate()  # it goes on, and ends
    assert process.returncode == 0
    assert names(tmp_path) == sorted(["theirs", "mine", "other", *others])


@posix
def test_a_file_system_without_locks_keeps_the_parts(tmp_path, monkeypatch):
    part, _ = leave_a_part(tmp_path)

    def flock(*_):
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(_files.fcntl, "flock", flock)
    write(tmp_path / "a")
    assert names(tmp_path) == sorted([part.name, "a"])


@posix
def test_a_part_that_was_swept_before_its_lock_is_made_anew(tmp_path, monkeypatch):
    flock, swept = _files.fcntl.flock, []

    def flock_late(file, operation):
        if not swept:
            swept.append(file.name)
            Path(file.name).unlink()
        flock(file, operation)

    monkeypatch.setattr(_files.fcntl, "flock", flock_late)
    write(tmp_path / "a")
    assert swept and names(tmp_path) == ["a"]


def test_without_locks_at_all_files_are_written_too(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "fcntl", None)  # Windows
    write(tmp_path / "a")
    with pytest.raises(KeyError), whole_file(tmp_path / "a"):
        raise KeyError
    assert (tmp_path / "a").read_bytes() == b"new" and names(tmp_path) == ["a"]


@posix
def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to("there/file")
    for content in (b"first", b"second"):  # dangling at first
        write(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    assert names(tmp_path) == ["link", "there"] and names(tmp_path / "there") == ["file"]


@posix
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device", "itself"])
def test_what_is_no_file_is_neither_opened_nor_replaced(tmp_path, kind):
    path = tmp_path / "a"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "a device" else path)
    before = path.lstat()
    match = "Too many levels|Is a directory|is (a folder|a pipe|a device|a link to itself), not a file"
    with pytest.raises(OSError, match=match):
        write(path)
    with pytest.raises(OSError, match=match):
        open_file(path)
    assert path.lstat() == before and names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本 'x' \\", "plain ü 日本 'x' \\"),
        ("a\x1b]0;title\x07\n\r\x9b2J", r"a\x1b]0;title\x07\n\r\x9b2J"),
        ("\u202egnp.exe\udcff\x00", r"\u202egnp.exe\udcff\x00"),
        ("x" * 1001, "x" * 1000 + "…"),
    ],
)
def test_printable_texts_steer_no_terminal(text, shown):
    assert printable(text) == shown
    printable(text).encode()


@posix
def test_locks_that_do_not_hold_within_a_process_harm_no_other_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(_files.fcntl, "flock", lambda file, operation: None)  # as on some network drives
    with whole_file(tmp_path / "a") as file:
        write(tmp_path / "b")
        assert Path(file.name).exists()
    assert names(tmp_path) == ["a", "b"]


def test_a_file_is_read_whole_if_it_is_one_and_not_too_long(tmp_path):
    path = tmp_path / "a"
    assert read_file(path, 3) is None
    path.write_bytes(b"abc")
    assert read_file(path, 3) == b"abc"
    with pytest.raises(OSError, match="has 3 bytes, more than the 2 expected there"):
        read_file(path, 2)


@posix
@pytest.mark.parametrize("below", ["", "folder/file"])
def test_a_link_that_leads_nowhere_is_not_taken_for_nothing(tmp_path, below):
    (tmp_path / "link\x1b").symlink_to("gone")
    with pytest.raises(OSError, match=r"link\\x1b is a link to gone, which is not there"):
        read_file(tmp_path / "link\x1b" / below, 3)


def test_a_part_that_cannot_be_looked_at_is_not_left(tmp_path, monkeypatch):
    def fails(path):
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", fails)
        with pytest.raises(OSError, match="Input/output error"):
            write(tmp_path / "a")
    assert names(tmp_path) == []
