"""Write files whole or not at all, open regular files only, and print any name safely."""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PART = re.compile(r"\.gpulesson-[0-9a-f]{16}\.part")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link to itself",
}
# The parts of this process: on some network drives, locks exclude other processes only. No weak references:
# an exception that a signal raises in their callbacks would be lost.
_ours: dict[str, BinaryIO] = {}


def printable(text: object, most: int = 1000) -> str:
    r"""Return a text on one line, with control characters escaped: a name could steer a terminal with them.

    Examples
    --------
    >>> print(printable("red\x1b[31m.pt"))
    red\x1b[31m.pt
    """
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(text)[: most + 1])
    return line if len(line) <= most else f"{line[:most]}…"


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes; a pipe or device, which may block or never end, raises OSError."""
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    try:
        _check_regular(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def read_file(path: Path, most: int) -> bytearray | None:
    """Return the content of a file, or None if it does not exist; OSError also if it exceeds `most` bytes.

    A broken link, of the file or of a folder above it, is an OSError: something should be there.
    """
    try:
        file = open_file(path)
    except FileNotFoundError:
        for link in (path, *path.parents):
            if link.is_symlink() and not link.exists():
                raise OSError(
                    f"{printable(link)} is a link to {printable(link.readlink())}, which is not there"
                ) from None
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"{printable(path)} has {size} bytes, more than the {most} expected there")
        return bytearray(file.read(size))


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` at the end: synced, in one step, or not at all.

    Meanwhile it is beside `path`, hidden and locked (``file.name``). A process that is killed leaves it
    there; the next one that writes into the folder removes it (not on Windows). If `path` exists, it must be
    a file, whose permissions are kept: a link is followed, anything else raises OSError. Missing folders are
    made.
    """
    path = Path(os.path.realpath(path))
    mode = None  # of the file that is replaced; else the umask decides
    with suppress(FileNotFoundError):
        _check_regular(found := path.lstat(), path)
        mode = stat.S_IMODE(found.st_mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    with _new_part(path.parent) as file:
        part = Path(file.name)
        try:
            if mode is not None and fcntl:
                with suppress(OSError):  # a file system without modes
                    os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not fcntl:  # Windows cannot rename an open file; elsewhere it stays locked until it is renamed
                file.close()
            part.replace(path)
            with suppress(OSError):  # it is synced and renamed: an error in closing it changes nothing
                file.close()
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):  # after the renaming there is none
                if not fcntl:
                    file.close()
                part.unlink()
            _ours.pop(part.name, None)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(f"{printable(path)} is {kind}, not a file")


def _new_part(folder: Path) -> BinaryIO:
    while True:
        part = folder / f".gpulesson-{secrets.token_hex(8)}.part"
        file = part.open("x+b")
        try:
            _ours[part.name] = file
            with suppress(OSError):  # a file system without locks: nothing is swept there
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_EX)
            if part.exists():  # no other process swept it before the lock
                return file
        except BaseException:
            file.close()
            with suppress(OSError):
                part.unlink()
            raise
        file.close()


def _sweep(folder: Path) -> None:
    """Remove the parts of dead processes, whose locks are free."""
    for part in folder.iterdir() if fcntl and os.access(folder, os.R_OK) else []:
        ours = _ours.get(part.name)
        if _PART.fullmatch(part.name) and part.is_file() and (ours is None or ours.closed):
            with suppress(OSError), part.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows and some network drives cannot; the file itself is synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
