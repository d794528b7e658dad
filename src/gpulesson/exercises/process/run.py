"""Run a learner's program in a process and a folder of its own, within bounds, and read what was seen.

Time is processor time: a busy machine makes a program slower, and not wrong. A program that uses none for as
long as it may compute is stopped, too: it waits for something that does not come.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpulesson.exercises.process.child import sealed
from gpulesson.exercises.process.leftovers import MARK, end_group
from gpulesson.exercises.process.warm import START_SECONDS, ForkedProcess, WarmProcess
from gpulesson.exercises.trace import NOWHERE, Site, Trace
from gpulesson.practice.environment import without_practice_gpu

_STACK_SECONDS = 10
"""How long a program that is stopped has to write down where it was."""
_IDLE = 0.01
"""A program that uses less than this share of a processor is waiting."""
_LARGE = 100 * 2**20
"""Bytes of data that are linked, and not copied, into the program's folder."""
_KEPT = 20_000
"""Characters of output kept from the beginning, and as many from the end."""
_ROOT = Path(__file__).parents[3]
_running: dict[str, subprocess.Popen[bytes] | ForkedProcess] = {}
"""The programs that run, by the folder of their run."""
_BEGIN = (
    "import sys; sys.path[0] = {root!r}; "
    "from gpulesson.exercises.process.child import main; main({job!r}, {watched})"
)


@dataclass(frozen=True)
class Rank:
    """Which of several processes a run is, where one program runs in all of them.

    Attributes
    ----------
    number, of : int
        From 0; and how many there are.
    folder : str
        One that they have in common; the program lies in its folder ``program``.
    """

    number: int
    of: int
    folder: str


@dataclass(frozen=True)
class _Bounds:
    """Seconds of processor time, seconds of waiting, bytes of main memory."""

    seconds: float
    idle: float
    memory: int


@dataclass
class Outcome:
    """How a run ended.

    Attributes
    ----------
    status : str
        ``"ran"``, ``"time"``, ``"idle"``, ``"memory"``, ``"slow-start"``, ``"no-torch"``,
        ``"no-practice-gpu"`` or ``"vanished"``.
    trace : Trace or None
        What was seen, if it ran.
    message : str
        What else is known.
    site : Site
        Where it was when its time was over.
    output : str
        What it printed, the middle left out if there was much.
    returncode : int
        Of the process; negative: the signal that ended it.
    """

    status: str
    trace: Trace | None = None
    message: str = ""
    site: Site = NOWHERE
    output: str = ""
    returncode: int = 0


def run(
    source: bytes,
    name: str,
    *,
    exercise: str = "",
    beside: str = "",
    data: Sequence[Path] = (),
    gpu: bool = True,
    seconds: float = 60,
    idle: float | None = None,
    memory: int = 4 * 2**30,
    rank: Rank | None = None,
    warm: WarmProcess | None = None,
    tell: Callable[[float], object] | None = None,
) -> Outcome:
    """Run a program and watch it.

    Parameters
    ----------
    source : bytes
        The program.
    name : str
        Its file's name.
    exercise : str
        Number of the exercise: chooses what is looked at in the end.
    beside : str
        A folder whose modules it may import.
    data : sequence of Path
        Files and folders that its own folder has copies of; of large ones links.
    gpu : bool
        With a GPU, the practice one or a real one; False: as on a machine without.
    seconds, memory : float, int
        The bounds: seconds of processor time from the program's first line, its children's included, or of
        waiting; bytes in main memory.
    idle : float, optional
        Seconds of waiting, where they are fewer.
    rank : Rank, optional
        It is one of several processes with a practice GPU each, and `lay_out` has written the program.
    warm : WarmProcess, optional
        Starts the program, with PyTorch imported already; by default it has a process of its own.
    tell : callable, optional
        Called again and again while the program runs, with the seconds since it was started.

    Returns
    -------
    Outcome
    """
    with tempfile.TemporaryDirectory(prefix="gpulesson-", ignore_cleanup_errors=True) as scratch:
        private, own = Path(scratch, "private"), Path(rank.folder if rank else scratch, "program")
        private.mkdir()
        if rank is None:
            lay_out(own, source, name, data)
        key = secrets.token_bytes(32)
        job = {
            "key": key.hex(),
            "program": str(own / name),
            "folder": str(private),
            "exercise": exercise,
            "beside": beside,
            "gpu": gpu,
            "seconds": seconds,
            "memory": memory,
            "rank": None if rank is None else asdict(rank),
        }
        (private / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = {**_environment(own, gpu), MARK: scratch}
        with _lifeline() as watched:
            process = _start(private, environment, warm, watched)
            bounds = _Bounds(seconds, seconds if idle is None else min(idle, seconds), memory)
            return _supervise(process, private, own, key, bounds, tell)


def lay_out(folder: Path, source: bytes, name: str, data: Sequence[Path]) -> None:
    """Make the folder that a program runs in, with the program and copies of its data."""
    folder.mkdir()
    for path in data:
        _lend(path, folder / path.name)
    (folder / name).write_bytes(source)


def _lend(path: Path, place: Path) -> None:
    """Copy a file or folder, so that the program leaves the learner's as it is; link it if it is large."""
    with contextlib.suppress(OSError):  # one that cannot be read: the program will say so
        files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
        if sum(file.stat().st_size for file in files) > _LARGE:
            place.symlink_to(path, target_is_directory=path.is_dir())
        elif path.is_dir():
            shutil.copytree(path, place)
        else:
            shutil.copy2(path, place)


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    """Yield one end of a pipe, to be watched; the other is closed when this process ends, however that is."""
    if os.name != "posix":
        yield -1
        return
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


def _environment(own: Path, gpu: bool) -> dict[str, str]:
    environment = without_practice_gpu(os.environ)
    environment.pop("GPULESSON_DEVICE", None)
    environment |= {
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(own)),
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "PYTHONUNBUFFERED": "1",
        "CUDA_LAUNCH_BLOCKING": "1",  # an error comes in the line that made it; no time is measured here
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"  # Windows drops a variable that is empty
    return environment


def _start(
    private: Path, environment: dict[str, str], warm: WarmProcess | None, watched: int
) -> subprocess.Popen[bytes] | ForkedProcess:
    job = str(private / "job.json")
    if warm is not None:
        main = "gpulesson.exercises.process.child:main"
        return warm.start(main, job, folder=private, environment=environment)
    return subprocess.Popen(
        [sys.executable, "-c", _BEGIN.format(root=str(_ROOT), job=job, watched=watched)],
        cwd=private,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=() if watched < 0 else (watched,),
    )


def _supervise(
    process: subprocess.Popen[bytes] | ForkedProcess,
    private: Path,
    own: Path,
    key: bytes,
    bounds: _Bounds,
    tell: Callable[[float], object] | None,
) -> Outcome:
    output = _Output(process.stdout)
    mark = str(private.parent)
    _running[mark] = process
    try:
        ended = _wait(process, private, bounds, tell)
        if ended != "ended":
            _have_stack_written(process)
    finally:
        _end(process, mark)
        del _running[mark]
    output.thread.join(timeout=5)
    printed = output.text().replace(f"{own}{os.sep}", "")
    assert process.returncode is not None
    return _outcome(ended, process.returncode, private, own, key, printed)


def _wait(
    process: subprocess.Popen[bytes] | ForkedProcess,
    private: Path,
    bounds: _Bounds,
    tell: Callable[[float], object] | None,
) -> str:
    """Wait until the process ends or breaks a bound; return which."""
    begun, before, worked = time.monotonic(), None, (0.0, 0.0)
    while True:
        try:
            process.wait(timeout=0.1)
            return "ended"
        except subprocess.TimeoutExpired:
            pass
        now, used = time.monotonic(), usage(process.pid)
        if tell is not None:
            tell(now - begun)
        if used.resident > bounds.memory * 1.1:
            return "memory"
        if before is None:
            if (private / "started").exists():
                before, worked = used.seconds, (now, used.seconds)
            elif now - begun > START_SECONDS:
                return "slow-start"
        elif used.seconds - before > bounds.seconds:
            return "time"
        elif used.seconds - worked[1] > _IDLE * bounds.idle:
            worked = now, used.seconds
        elif not MEASURED and now - worked[0] > bounds.seconds + 1.5:  # its stack is written at `seconds`
            return "time"
        elif MEASURED and now - worked[0] > bounds.idle:
            return "idle"


def _have_stack_written(process: subprocess.Popen[bytes] | ForkedProcess) -> None:
    """Have the program write down its stack, as `child` has arranged, and end."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STACK_SECONDS)


def _outcome(ended: str, returncode: int, private: Path, own: Path, key: bytes, output: str) -> Outcome:
    result = _result(private, key)
    if result is not None:
        trace = Trace.from_dict(result["trace"]) if "trace" in result else None
        return Outcome(result["status"], trace, result.get("message", ""), Site(), output, returncode)
    if ended == "ended":
        ended = "vanished"
    return Outcome(ended, None, "", _last_line(private, own), output, returncode)


def _result(private: Path, key: bytes) -> dict[str, Any] | None:
    """Read what the child has written; nothing that does not carry the seal of this run."""
    try:
        seal, _, content = (private / "result.json").read_bytes().partition(b"\n")
    except OSError:
        return None
    if not hmac.compare_digest(seal, sealed(key, content)):
        return None
    result: dict[str, Any] = json.loads(content)
    return result


def _last_line(private: Path, own: Path) -> Site:
    """Find the learner's innermost line in the stack that was written when the time was over."""
    try:
        stacks = (private / "stacks").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Site()
    for file, line in re.findall(r'File "(.+?)", line (\d+) in', stacks):
        if file.startswith(str(own)):
            return Site(file, int(line))
    return Site()


class Usage(NamedTuple):
    """What a program and its children have used: seconds of processor time, bytes of main memory."""

    seconds: float = 0.0
    resident: int = 0


MEASURED = os.name == "posix"
"""Whether this system tells what a program uses."""


def usage(pid: int) -> Usage:
    """Return what a program and all of its session use; on macOS the program alone, on Windows nothing."""
    proc = Path("/proc")
    if not (proc / str(pid)).exists():
        return _usage_by_ps(pid) if sys.platform == "darwin" else Usage()
    ticks, resident = 0, 0
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == pid:  # the session
                    ticks += sum(map(int, stat[11:15]))  # user and system, of itself and of ended children
                    pages = (entry / "statm").read_text().split()
                    resident += int(pages[1]) - int(pages[2])  # less what is shared
            except (OSError, ValueError, IndexError):
                continue
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), resident * os.sysconf("SC_PAGE_SIZE"))


def _usage_by_ps(pid: int) -> Usage:
    command = ["ps", "-o", "time=,rss=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C"}  # the decimal point is a point
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return told_by_ps(done.stdout)


def told_by_ps(text: str) -> Usage:
    """Read the columns ``time`` and ``rss`` of macOS's ``ps``: minutes and seconds, and KiB.

    Examples
    --------
    >>> told_by_ps("  12:03.50  2048")
    Usage(seconds=723.5, resident=2097152)
    """
    fields = text.split()
    if len(fields) != 2:
        return Usage()
    seconds = 0.0
    for part in fields[0].split(":"):
        seconds = 60 * seconds + float(part)
    return Usage(seconds, int(fields[1]) * 1024)


def _end(process: subprocess.Popen[bytes] | ForkedProcess, mark: str) -> None:
    """End the process, and whatever it has started (on Windows: if it is still running itself)."""
    if os.name == "posix":
        end_group(process.pid, mark)
    else:
        with contextlib.suppress(OSError):
            tree = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
            subprocess.run(tree, capture_output=True, check=False)
        process.kill()
    process.wait()


def end_running() -> None:
    """End every program that runs, in whichever thread it was started."""
    for mark, process in list(_running.items()):
        _end(process, mark)


class _Output:
    """Reads a pipe to its end, and keeps the beginning and the end."""

    def __init__(self, pipe: Any) -> None:
        self._head, self._tail, self._left_out = b"", b"", 0
        self._pipe = pipe
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while chunk := self._pipe.read1(65536):
            room = _KEPT - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:] if room > 0 else chunk
            if len(self._tail) > _KEPT:
                self._left_out += len(self._tail) - _KEPT
                self._tail = self._tail[-_KEPT:]

    def text(self) -> str:
        """Return what was kept."""
        gap = f"\n[… {self._left_out:,} bytes left out …]\n".encode() if self._left_out else b""
        return (self._head + gap + self._tail).decode("utf-8", errors="replace")
