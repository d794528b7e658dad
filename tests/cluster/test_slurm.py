"""The job scripts of ``examples/distributed``, submitted to a real Slurm.

The Slurm is Debian's, on this machine: ``apt-get install --no-install-recommends slurmctld slurmd
slurm-client munge``. Debian builds it so that two ``slurmd`` can run here: two nodes for Slurm, one machine.
Its GPUs are files: Slurm counts them, and PyTorch finds none and takes the CPU. A job script is submitted as
it stands, but for the lines that it asks its reader to change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jobs import SCRIPTS, edited, same_weights
from one_machine import LIMIT, NOT_ROOT, Slurm, missing, processes, running_slurm, wait_until

from gpulesson.data import excerpt_folder

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TRAINING = ("--epochs", "6", "--samples", "256", "--batch-size", "64", "--workers", "0")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if lacking := missing():
        installable = NOT_ROOT not in lacking  # where it is not, CI cannot bring it either
        refuse = pytest.fail if installable and os.environ.get("CI") else pytest.skip
        refuse(f"Slurm cannot run here; missing: {', '.join(lacking)}")
    folder = tmp_path_factory.mktemp("slurm")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with running_slurm(folder, {**os.environ, "PATH": path}) as found:
        yield found
    assert not processes(SLURM_CONF=str(folder / "slurm.conf"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights after a training without Slurm that nobody stopped, by two ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(SCRIPTS / "train_ddp.py"), "--data", str(excerpt_folder()), "--folder", str(folder)]
    subprocess.run([*command, *TRAINING], check=True, timeout=LIMIT)
    return torch.load(folder / "model.pt")


def stop_when_saved(job: str, folder: Path) -> list[int]:
    """Stop a job's ranks after their first epoch, as if each step took long; returns their numbers."""
    wait_until((folder / "run" / "checkpoint.pt").exists, "the first checkpoint")
    ranks = [
        rank
        for number in "01"
        for rank in processes(SLURM_JOB_ID=job, RANK=number, TORCHELASTIC_RESTART_COUNT="0")
    ]
    assert len(ranks) == 2
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    return ranks


def finish_after_requeue(slurm: Slurm, job: str, folder: Path, ranks: list[int]) -> str:
    """Let the ranks of a warned job go on, wait for the job's second start, and return what it wrote."""
    (output,) = folder.glob("*.out")
    wait_until(lambda: "waiting for the checkpoint" in output.read_text(), "the warning")
    for rank in ranks:
        os.kill(rank, signal.SIGCONT)
    wait_until(lambda: slurm.state(job) == "PENDING", "the job to be back in the queue")
    # Slurm would wait for two minutes; in the same second it could not start a job twice. And with as short
    # a limit as before, it would soon warn again
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+5", "TimeLimit=60")
    wait_until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), "the job's end")
    assert slurm.state(job) == "COMPLETED", output.read_text()
    return output.read_text()


def test_a_job_is_warned_saves_and_finishes_after_its_requeue(slurm, undisturbed, tmp_path) -> None:
    script = edited("one_node.sbatch", tmp_path, TRAINING)
    job, submitted = slurm.submit(script), time.monotonic()
    ranks = stop_when_saved(job, tmp_path)
    # at most two minutes are left: Slurm warns, as the script asks, when it next looks at the time
    minutes = (time.monotonic() - submitted) // 60 + 2
    slurm.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes:.0f}")
    output = finish_after_requeue(slurm, job, tmp_path, ranks)
    assert output.count("on from epoch") == 1
    assert same_weights(tmp_path / "run" / "model.pt", undisturbed)


def test_a_job_on_several_nodes_is_one_training(slurm, undisturbed, tmp_path) -> None:
    script = edited("several_nodes.sbatch", tmp_path, TRAINING)
    job = slurm.submit(script, "--gpus-per-node=1")
    ranks = stop_when_saved(job, tmp_path)
    beside = slurm.run("srun", f"--jobid={job}", "--overlap", "echo", "seen")  # as the page does to look
    assert set(beside.split()) == {"seen"}
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # what Slurm sends before the limit
    output = finish_after_requeue(slurm, job, tmp_path, ranks)
    assert output.count("on from epoch") == 1
    assert same_weights(tmp_path / "run" / "model.pt", undisturbed)


def test_each_job_of_an_array_has_its_own_learning_rate(slurm, undisturbed, tmp_path) -> None:
    script = edited("array.sbatch", tmp_path, TRAINING)
    job = slurm.submit(script)
    wait_until(lambda: not {"PENDING", "RUNNING", "COMPLETING"} & set(slurm.state(job).split()), "the array")
    assert slurm.state(job).split() == ["COMPLETED"] * 3
    found = {rate: tmp_path / "run" / f"rate-{rate}" / "model.pt" for rate in ("0.01", "0.001", "0.0001")}
    # the script's own rate: one rank has computed what two did, but for rounding
    assert same_weights(found["0.001"], undisturbed, rounding=1e-4)
    assert not same_weights(found["0.01"], undisturbed, rounding=1e-4)
    assert not same_weights(found["0.0001"], undisturbed, rounding=1e-4)
