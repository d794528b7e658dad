"""A real Slurm on this machine alone: two nodes with two pretended GPUs each, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "setpriv")
NOT_ROOT = "the rights of root"
LIMIT = 300  # seconds: an end to what hangs; a busy machine may be slow

# No accounting, no control groups, no other machine. The nodes claim to be large, so that job scripts need
# no change; both are this machine (Debian's Slurm can do so), and their names are ones that it can resolve.
CONFIGURATION = """\
ClusterName=one_machine
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host},localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]},{ports[2]} CPUs=64 \
RealMemory=256000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Return what this machine lacks to run a Slurm of its own."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        lacking.append(NOT_ROOT)
    return lacking


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end, f"waited {LIMIT} s for {what}"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Slurm:
    """What tests ask of the running Slurm."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def run(self, *command: str, folder: Path | None = None) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: Path, *options: str) -> str:
        """Submit a job script from its own folder; returns the job's number."""
        return self.run("sbatch", "--parsable", *options, script.name, folder=script.parent)

    def state(self, job: str) -> str:
        """Return the state of a job, of an array's tasks one a line."""
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")


@contextlib.contextmanager
def running_slurm(folder: Path, environment: dict[str, str]) -> Iterator[Slurm]:
    """Run munged, slurmctld and a slurmd per node; afterwards nothing of them, or of their jobs, is left."""
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3)))
    for gpu in ("gpu0", "gpu1"):
        (folder / gpu).touch()
    (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/gpu[0-1]\n")
    (folder / "state").mkdir()
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    munge_options = [f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed")]
    environment = environment | {"SLURM_CONF": str(configuration)}
    slurm = Slurm(environment)
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        ended_with_us = ["setpriv", "--pdeathsig", "KILL"]  # even if this process is killed
        with (folder / "daemons.log").open("ab") as log:
            daemons.append(
                subprocess.Popen(
                    [*ended_with_us, *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for pytest, which ends them in order
                )
            )

    try:
        start("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *munge_options)
        wait_until((munge / "socket").exists, "munged")
        start("slurmctld", "-D", "-c")
        for node in (host, "localhost"):
            start("slurmd", "-D", "-c", "-N", node)
        wait_until(lambda: ready(slurm), f"Slurm; its logs are in {folder}")
        yield slurm
    finally:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            slurm.run("scancel", "--state=PENDING", "--user=root")
            slurm.run("scancel", "--signal=KILL", "--full", "--user=root")
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()
        for process in processes(SLURM_CONF=str(configuration)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def ready(slurm: Slurm) -> bool:
    asked = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"],
        env=slurm.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return asked.stdout.split() == ["idle", "idle"]


def processes(**environment: str) -> list[int]:
    """Return the numbers of the processes whose environment has all of these variables."""
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended
                if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                    found.append(int(folder.name))
    return found
