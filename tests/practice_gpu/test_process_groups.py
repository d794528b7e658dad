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


def test_each_process_has_its_device_and_the_programs_arguments(found):
    assert both(found, "argv") == ["--n", "5"]
    assert both(found, "names") == ["nccl", "nccl", "gloo", True, 2, [1.0, 1.0]]


def test_reductions(found):
    rows = torch.tensor([[1, 2], [2, 5]])
    expected = {"SUM": rows.sum(0), "MIN": rows.amin(0), "MAX": rows.amax(0), "PRODUCT": rows.prod(0)}
    for name, values in both(found, "reductions").items():
        op, dtype = name.split()
        exact = rows.double().mean(0) if op == "AVG" else expected[op].double()
        assert values == (exact.trunc() if dtype == "torch.int64" else exact).tolist(), name


def test_exchanges(found):
    first, second = (each["exchanges"] for each in found)
    whole = [0.0, 1.0, 10.0, 11.0]
    for here in (first, second):
        assert here["all_gather"] == here["rows"] == [[0, 1], [10, 11]]
        assert here["all_gather_into_tensor"] == whole
        assert here["broadcast"] == [10, 11]
    summed = [2 * value + 1 for value in whole]
    assert first["reduce_scatter_tensor"] + second["reduce_scatter_tensor"] == summed
    assert first["reduce_scatter"] + second["reduce_scatter"] == [value / 2 for value in summed]
    assert first["all_to_all_single"] + second["all_to_all_single"] == [0, 10, 1, 11]
    assert first["rows of all_to_all_single"] == [[0, 1], [10, 11], [12, 13]]
    assert second["rows of all_to_all_single"] == [[2, 3], [4, 5], [14, 15]]
    assert first["reduce"] == [1.5]
    assert first["gather"] == [[0, 1], [10, 11]] and second["gather"] is None
    assert first["scatter"] == [0, 1] and second["scatter"] == [5, 6]
    assert second["send"] == [0, 1]


def test_objects_travel_by_the_device(found):
    assert both(found, "objects") == [[{"rank": 0}, {"rank": 1}], [1, 1]]


def test_what_is_on_the_host_is_received_from_anybody_where_gloo_serves_it(found):
    assert both(found, "received_on_the_host") == [5]


def test_collectives_of_the_compiler(found):
    assert both(found, "functional") == [3, 3]


def test_averages(found):
    for way, values in both(found, "averages").items():
        assert values == ([0, 5] if way == "coalesced integers" else [0.5, 5]), way


def alone(norm=False):
    return rank_programs.train(rank_programs.network(norm), (0, 1), "cpu").state_dict()


def distance(weights, expected):
    assert weights.keys() == expected.keys()
    found = {name: torch.tensor(weights[name], dtype=value.dtype) for name, value in expected.items()}
    return max((found[name] - value).abs().max().item() for name, value in expected.items())


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
def test_two_processes_learn_what_one_does(found, norm):
    weights = both(found, "synchronised_norm" if norm else "data_parallel")
    started = rank_programs.network(norm).state_dict()
    assert distance(weights, started) > 0.01
    assert distance(weights, alone(norm)) < 1e-12


def test_a_sharded_model_learns_the_same_and_each_process_holds_a_part(found):
    first, second = (each["fully_sharded"] for each in found)
    assert first["weights"] == second["weights"]
    assert distance(first["weights"], alone()) < 1e-12
    in_steps = rank_programs.train(
        rank_programs.network(), (0, 1), "cpu", optimizer=torch.optim.SGD
    ).state_dict()
    assert first["float32"] == second["float32"] and distance(first["float32"], in_steps) < 1e-6
    parts = first["held"], second["held"]
    assert sum(parts) == sum(value.numel() for value in alone().values()) and min(parts) > 0


def test_shards_are_saved_and_loaded(found):
    assert both(found, "saved_in_shards") is True


def test_a_layer_in_two_parts(found):
    difference, rows, device = found[1]["tensor_parallel"]
    assert difference < 1e-12 and (rows, device) == (8, "cuda:1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("on_the_cpu", "RuntimeError: No backend type associated with device type cpu"),
        ("partly_on_the_cpu", "ValueError: Tensors must be CUDA and dense"),
        ("on_two_devices", "ValueError: Expected list of tensors on the same device"),
        ("bitwise", "ValueError: Cannot use ReduceOp.BAND with NCCL"),
        ("bitwise_on_the_cpu", "RuntimeError: No backend type associated with device type cpu"),
        ("from_anybody", "RuntimeError: Backend nccl does not support recvAnysource"),
        (
            "of_other_sizes",
            "PracticeError: rank 0 calls allreduce of 2 elements, torch.float32, but rank 1 calls allreduce",
        ),
        (
            "something_else",
            "PracticeError: rank 0 calls broadcast of 2 elements, torch.float32, but rank 1 calls",
        ),
        ("other_models", "RuntimeError: DDP expects same model across all ranks, but Rank 0 has"),
        (
            "a_model_in_two_places",
            "ValueError: DistributedDataParallel's input module must be on the same type",
        ),
    ],
)
def test_what_is_refused(found, name, message):
    assert found[0][name].startswith(message)
    assert found[1][name].split(":")[0] == message.split(":")[0]


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
