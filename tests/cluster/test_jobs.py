"""The job scripts of ``examples/distributed`` without a batch system: directives, and what PBS jobs do.

Debian 12 has no package of OpenPBS, so no PBS job is submitted. The directives are compared with the options
of ``qsub``, and the bodies run with the variables that PBS sets; of its commands, ``qsub`` and ``pbsdsh`` are
replaced by small programs. ShellCheck reads all of the scripts in ``nox -s lint``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jobs import SCRIPTS, edited, same_weights
from one_machine import LIMIT, processes, wait_until

from gpulesson.data import excerpt_folder

JOBS = sorted(path.name for path in SCRIPTS.iterdir() if path.suffix in (".sbatch", ".pbs"))
TRAINING = ("--epochs", "2", "--samples", "256", "--batch-size", "64", "--workers", "0")
# https://github.com/openpbs/openpbs/blob/master/doc/man1/qsub.1B
QSUB = set("aAceGhIjJklmMNopPqrRSuvVWXz")


def directives(name: str, prefix: str) -> list[str]:
    """Return the directives of a job script; the batch system reads none behind the first command."""
    lines = (SCRIPTS / name).read_text("utf-8").splitlines()
    head = [line for line in lines if line.startswith(prefix)]
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(lines.index(line) < first_command for line in head)
    return [line.removeprefix(prefix).strip() for line in head]


def test_there_are_three_jobs_for_each_batch_system() -> None:
    kinds = ("array", "one_node", "several_nodes")
    assert {f"{kind}.{system}" for kind in kinds for system in ("pbs", "sbatch")} == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_script_is_short(name: str) -> None:
    assert len((SCRIPTS / name).read_text("utf-8").splitlines()) <= 42


@pytest.mark.parametrize("name", [name for name in JOBS if name.endswith(".sbatch")])
def test_sbatch_accepts_each_option(name: str, tmp_path: Path) -> None:
    if shutil.which("sbatch") is None:
        pytest.skip("needs Slurm's sbatch")
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\n")  # it asks for one
    environment = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    used = directives(name, "#SBATCH")
    assert len(used) > 5
    command = ["sbatch", *used, "--help"]  # before it helps, it reads all options, their values too
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in JOBS if name.endswith(".pbs")])
def test_qsub_knows_each_option(name: str) -> None:
    used = directives(name, "#PBS")
    assert used and all(re.fullmatch(r"-[a-zA-Z]( \S+)?", option) for option in used)
    assert {option[1] for option in used} <= QSUB


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What PBS sets, with a qsub that notes what it is given, and a pbsdsh that runs all on this machine."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "qsub").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/submitted\n')
    nodes = tmp_path / "nodes"
    nodes.write_text(f"localhost\n{socket.gethostname()}\n")
    known = f"PATH=/usr/bin:/bin PBS_JOBID=12.server GPULESSON_TEST={tmp_path} OMP_NUM_THREADS=1"
    each = f'while read -r node; do\n    (cd / && env -i {known} "$@") &\ndone < "$PBS_NODEFILE"\nwait\n'
    (programs / "pbsdsh").write_text(f"#!/bin/bash\nshift\n{each}")
    for program in programs.iterdir():
        program.chmod(0o755)
    variables = {"PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": str(nodes), "PBS_JOBID": "12.server"}
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    yield {**os.environ, **variables, "PATH": path, "GPULESSON_TEST": str(tmp_path)}
    for process in processes(GPULESSON_TEST=str(tmp_path)):  # of a test that failed
        os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights after the same training by one process."""
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, str(SCRIPTS / "train_ddp.py"), "--data", str(excerpt_folder())]
    subprocess.run([*command, "--folder", str(folder), *TRAINING], check=True, timeout=LIMIT)
    return torch.load(folder / "model.pt")


def run(script: Path, surroundings: dict[str, str]) -> int:
    """Run a job script as PBS does, in another folder than its own."""
    return subprocess.run(["bash", str(script)], env=surroundings, cwd="/", timeout=LIMIT).returncode


@pytest.mark.thorough
@pytest.mark.slow
def test_a_pbs_job_submits_itself_again_when_its_time_is_up(surroundings, weights, tmp_path) -> None:
    endless = ("--epochs", "1000", *TRAINING[2:])
    script = edited("one_node.pbs", tmp_path, endless)
    job = subprocess.Popen(["bash", str(script)], env=surroundings, cwd="/")
    wait_until((tmp_path / "run" / "checkpoint.pt").exists, "the first checkpoint")
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    (timeout,) = (one for one in children if "timeout" in Path(f"/proc/{one}/comm").read_text())
    os.kill(int(timeout), signal.SIGALRM)  # what its own clock would send it after `seconds`
    assert job.wait(LIMIT) == 124
    assert (tmp_path / "submitted").read_text() == "one_node.pbs\n"
    assert not processes(GPULESSON_TEST=str(tmp_path))
    done = torch.load(tmp_path / "run" / "checkpoint.pt")["epoch"]
    assert done >= 1
    edited("one_node.pbs", tmp_path, ("--epochs", str(done + 1), *TRAINING[2:]))
    (tmp_path / "submitted").unlink()
    assert run(script, surroundings) == 0
    assert not (tmp_path / "submitted").exists()
    alone = tmp_path / "alone"
    command = [sys.executable, str(SCRIPTS / "train_ddp.py"), "--data", str(excerpt_folder())]
    command += ["--folder", str(alone), "--epochs", str(done + 1), *TRAINING[2:]]
    subprocess.run(command, check=True, timeout=LIMIT)
    expected = torch.load(alone / "model.pt")
    assert same_weights(tmp_path / "run" / "model.pt", expected, rounding=1e-4)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_pbs_job_on_several_nodes_is_one_training(surroundings, weights, tmp_path) -> None:
    script = edited("several_nodes.pbs", tmp_path, TRAINING, gpus="1")
    assert run(script, surroundings) == 0
    assert same_weights(tmp_path / "run" / "model.pt", weights, rounding=1e-4)
    assert not (tmp_path / "submitted").exists()
    edited("several_nodes.pbs", tmp_path, TRAINING, gpus="1", seconds="1")  # up before it can begin
    run(script, surroundings)
    assert (tmp_path / "submitted").read_text() == "several_nodes.pbs\n"
    assert not processes(GPULESSON_TEST=str(tmp_path))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_pbs_array_gives_each_job_its_learning_rate(surroundings, weights, tmp_path) -> None:
    script = edited("array.pbs", tmp_path, TRAINING)
    for index in ("0", "1"):
        assert run(script, {**surroundings, "PBS_ARRAY_INDEX": index}) == 0
    assert same_weights(tmp_path / "run" / "rate-0.001" / "model.pt", weights, rounding=1e-4)
    assert not same_weights(tmp_path / "run" / "rate-0.01" / "model.pt", weights, rounding=1e-4)
