"""Several processes with a practice GPU each: what NCCL carries, and what it refuses.

Everything runs in real processes, once (`rank_programs.py`). What models learn there is compared with one
process without a practice GPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_programs
import torch
from torch import distributed

from practice_gpu import PracticeError
from practice_gpu.processes.process_groups import nccl_version

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not distributed.is_available(), reason="this PyTorch has no torch.distributed"),
]
COMMAND = [sys.executable, "-m", "practice_gpu"]
SURROUNDINGS = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}  # lines in one piece
LIMIT = 600  # seconds; a hang is a failure


def run(*words, command=COMMAND):
    return subprocess.run([*command, *words], env=SURROUNDINGS, capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes has found, in the order of their ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    done = run("--nproc", "2", rank_programs.__file__, str(folder), "--n", "5")
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text("utf-8")) for rank in range(2)]


def both(found, name):
    first, second = (each[name] for each in found)
    assert first == second
    return first


@pytest.mark.parametrize("name", rank_programs.CHECKS)
def test_what_each_process_checks(found, name):
    for each in found:
        assert not isinstance(each[name], str), each[name]


def test_a_program_gets_its_arguments(found):
    assert both(found, "argv") == ["--n", "5"]


def alone(norm=False, **options):
    return rank_programs.train(rank_programs.network(norm), (0, 1), "cpu", **options).state_dict()


def distance(weights, expected):
    assert weights.keys() == expected.keys()
    found = {name: torch.tensor(weights[name], dtype=value.dtype) for name, value in expected.items()}
    return max((found[name] - value).abs().max().item() for name, value in expected.items())


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
def test_two_processes_learn_what_one_does(found, norm):
    weights = both(found, "synchronised_norm" if norm else "data_parallel")
    assert distance(weights, rank_programs.network(norm).state_dict()) > 0.01
    assert distance(weights, alone(norm)) < 1e-12


def test_a_sharded_model_learns_the_same(found):
    sharded = both(found, "fully_sharded")
    assert distance(sharded["weights"], alone()) < 1e-12
    assert distance(sharded["float32"], alone(optimizer=torch.optim.SGD)) < 1e-6


@pytest.mark.thorough
def test_a_forgotten_set_device(tmp_path):
    """Started by torchrun itself; one GPU a process is there, and both take the first."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "assert torch.cuda.device_count() == 2\n"
        "dist.all_reduce(torch.ones(2).cuda())\n",
        encoding="utf-8",
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(str(program), command=[*torchrun, "-m", "practice_gpu"])
    assert done.returncode == 1
    assert "torch.distributed.DistBackendError: NCCL error in: " in done.stderr
    said = (
        "Multiple Ranks are using the same GPU"
        if nccl_version() >= (2, 30)
        else "Duplicate GPU detected : rank"
    )
    assert "ncclInvalidUsage" in done.stderr and said in done.stderr


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="whether a process runs is read in /proc")
def test_a_launcher_that_is_killed_leaves_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, time, torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "pathlib.Path(os.environ['RANK'] + '.pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n",
        encoding="utf-8",
    )
    launcher = subprocess.Popen([*COMMAND, "--nproc", "2", str(program)], cwd=tmp_path, env=SURROUNDINGS)
    try:
        files = [tmp_path / f"{rank}.pid" for rank in range(2)]
        wait(lambda: all(file.exists() and file.read_text() for file in files))
        started = [int(file.read_text()) for file in files]
        os.kill(launcher.pid, signal.SIGKILL)
        wait(lambda: not any(runs(number) for number in started))
    finally:
        launcher.kill()
        launcher.wait()


def wait(until):
    end = time.monotonic() + LIMIT
    while not until():
        assert time.monotonic() < end
        time.sleep(0.1)


def runs(number):
    status = Path(f"/proc/{number}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_the_exit_status_is_that_of_the_process_that_failed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nsys.exit(3 * int(os.environ['RANK']))\n", encoding="utf-8")
    done = run("--nproc", "2", str(program))
    assert done.returncode == 3
    assert "rank 1 failed with exit status 3" in done.stderr


@pytest.mark.thorough
def test_processes_that_a_program_spawns(tmp_path):
    """As in PyTorch's introduction: each process is told its rank, and where to meet."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "import torch.multiprocessing as mp\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "def run(rank, world, port):\n"
        "    store = dist.TCPStore('127.0.0.1', port, world, rank == 0)\n"
        "    dist.init_process_group('nccl', store=store, rank=rank, world_size=world)\n"
        "    torch.manual_seed(rank)\n"
        "    model = DistributedDataParallel(torch.nn.Linear(2, 1).to(rank), device_ids=[rank])\n"
        "    model(torch.ones(3, 2) * rank).sum().backward()\n"
        "    gradient = model.module.weight.grad\n"
        "    sys.stdout.write(f'{gradient.tolist()} {gradient.device}\\n')\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        "    import socket\n"
        "    with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "        port = server.getsockname()[1]\n"
        "    mp.spawn(run, (2, port), nprocs=torch.cuda.device_count())\n",
        encoding="utf-8",
    )
    done = run("--count", "2", str(program))
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if "cuda" in line]  # some versions of Gloo print, too
    assert sorted(found) == [f"[[1.5, 1.5]] cuda:{rank}" for rank in range(2)]


def test_a_group_that_is_destroyed_is_forgotten(gpu):
    for backend, values in (("nccl", torch.ones(2).cuda()), ("gloo", torch.ones(2))):
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
        distributed.all_reduce(values)
        distributed.destroy_process_group()


def test_a_group_of_both_sends_what_is_on_the_host_by_gloo(gpu):
    store = distributed.HashStore()
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        distributed.all_reduce(values := torch.tensor([5]), distributed.ReduceOp.BOR)
        assert values.item() == 5
        with pytest.raises(ValueError, match=r"Cannot use ReduceOp\.BOR with NCCL"):
            distributed.all_reduce(values.cuda(), distributed.ReduceOp.BOR)
    finally:
        distributed.destroy_process_group()


def test_a_group_that_is_made_by_hand_is_refused_and_one_process_is_enough(gpu):
    if hasattr(distributed, "ProcessGroupNCCL"):
        with pytest.raises(PracticeError, match="init_process_group"):
            distributed.ProcessGroupNCCL(distributed.HashStore(), 0, 1)
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        values = torch.ones(2, device="cuda")
        distributed.all_reduce(values)
        assert values.tolist() == [1, 1] and distributed.get_backend() == "nccl"
    finally:
        distributed.destroy_process_group()
