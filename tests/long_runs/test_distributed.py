"""Several ranks do what one process does; killed or stopped ones go on; mistakes are told, and end."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import math
import os
import pickle
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import distributed_run as program
import numpy
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as distributed_checkpoint
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from gpulesson.checkpoint import CheckpointError, load_checkpoint, resume, save_checkpoint
from gpulesson.evaluation import Evaluation, evaluate
from gpulesson.long_runs import shards as shards_module
from gpulesson.long_runs.distributed import (
    DistributedError,
    Part,
    Parts,
    RankAutoSave,
    Ranks,
    load_shards,
    processes,
    save_shards,
)
from gpulesson.training import fit

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in (*NAMES, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPULESSON_DEVICE", "cpu")
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.fixture
def environment(monkeypatch):
    def set_all(**values: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = dict(zip(NAMES, ("0", "0", "2", "127.0.0.1", str(port)), strict=True)) | values
        for name, value in given.items():
            if value:
                monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


# ---- a single process


def test_without_torchrun_there_is_one_rank_and_ddp_works(model):
    with processes() as ranks:
        assert ranks == Ranks(0, 0, 1, CPU) and ranks.is_main
        DistributedDataParallel(model)(torch.ones(2, 6).double()).sum().backward()
        assert ranks.sum(3) == 3 and ranks.on_main(lambda: "here") == "here"
    assert not dist.is_initialized()


def test_the_group_ends_after_an_error_too():
    with pytest.raises(KeyError), processes():
        raise KeyError
    assert not dist.is_initialized()
    with processes(), pytest.raises(DistributedError, match="has a process group already"), processes():
        pass
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"MASTER_ADDR": ""},
            r"RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_PORT=\d+, but no MASTER_ADDR: `torchr",
        ),
        ({"RANK": "", "LOCAL_RANK": "", "MASTER_PORT": ""}, "but no RANK, LOCAL_RANK, MASTER_PORT"),
        ({"RANK": "2"}, "RANK=2 .* with 0 ≤ LOCAL_RANK ≤ RANK < WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 .* 0 ≤ LOCAL_RANK"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two .* expected whole numbers"),
        ({"MASTER_PORT": "70000"}, "a MASTER_PORT from 1 to 65535"),
    ],
)
def test_an_environment_that_contradicts_itself(environment, values, said):
    environment(**values)
    with pytest.raises(DistributedError, match=said), processes(timeout=1):
        pass
    assert not dist.is_initialized()


def test_a_port_in_use(environment):
    environment()
    with (
        socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))),
        pytest.raises(DistributedError, match=r"cannot listen on 127.0.0.1:\d+, for the port is in use"),
        processes(timeout=1),
    ):
        pass


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(environment):
    environment(WORLD_SIZE="3")
    with (
        pytest.raises(DistributedError, match=r"1 of 3 ranks came in time, and rank 0 waits for rank 1, 2:"),
        processes(timeout=5),
    ):
        pass


@pytest.mark.slow
def test_a_rank_0_that_never_comes(environment):
    environment(RANK="1", LOCAL_RANK="1")
    with (
        pytest.raises(DistributedError, match=r"rank 1 of 2 got no answer from rank 0 at 127.0.0.1"),
        processes(timeout=1),
    ):
        pass


def test_more_processes_than_gpus(environment, monkeypatch):
    from gpulesson import practice_gpu

    monkeypatch.delenv("GPULESSON_DEVICE")
    environment(RANK="1", LOCAL_RANK="1")
    with (
        practice_gpu(),
        pytest.raises(DistributedError, match="LOCAL_RANK is 1, and this machine shows 1 GPU,"),
        processes(timeout=1),
    ):
        pass


@pytest.mark.parametrize("timeout", [0, -1, "10", True, float("nan")])
def test_a_timeout_that_is_none(timeout):
    with pytest.raises(ValueError, match="give a number of seconds"), processes(timeout=timeout):
        pass


def test_sum_takes_numbers_and_tensors_alone():
    with pytest.raises(TypeError, match="value is a list of 1"):
        Ranks(0, 0, 1, CPU).sum([1])


def test_one_rank_joins_what_it_found():
    one = Evaluation(0.5, 0.75, torch.tensor([[2, 1], [0, 1]]), 4)
    with processes() as ranks:
        joined = ranks.join(one)
    assert (joined.loss, joined.accuracy, joined.samples) == (0.5, 0.75, 4)
    ignored = Ranks(0, 0, 1, CPU).join(Evaluation(0.5, math.nan, torch.zeros(2, 2, dtype=torch.int64), 4))
    assert math.isnan(ignored.accuracy)
    with pytest.raises(TypeError, match=r"evaluation is 0\.5"):
        Ranks(0, 0, 1, CPU).join(0.5)


# ---- parts


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("samples", "batch_size"), [(23, 5), (8, 4), (3, 7), (1, 1), (17, 16)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_parts_make_up_the_batches_of_one_process(world_size, samples, batch_size, drop_last):
    def parts(rank: int, ranks: int) -> Parts:
        made = Parts(samples, batch_size, Ranks(rank, rank, ranks, CPU), seed=4, drop_last=drop_last)
        made.set_epoch(3)
        return made

    order = DistributedSampler(range(samples), 1, 0, seed=4)
    order.set_epoch(3)
    expected = list(torch.tensor(list(order)).split(batch_size))
    if drop_last:
        expected = [batch for batch in expected if len(batch) == batch_size]
    all_parts = [parts(rank, world_size) for rank in range(world_size)]
    assert {len(each) for each in all_parts} == {len(expected)}
    for number, batch in enumerate(expected):
        taken = []
        for each in all_parts:
            indices, part = list(each)[number], each.parts[number]
            assert len(indices) == max(part.size, 1)
            assert part.weight == pytest.approx(part.size / len(batch) * world_size)
            taken += indices[: part.size]
        assert taken == batch.tolist()


def test_an_empty_part_has_no_gradient():
    parts = Parts(1, 4, Ranks(0, 0, 2, CPU), shuffle=False)
    assert parts.parts == [Part(0, 0.0)] and list(parts) == [[0]]


@pytest.mark.parametrize(
    ("arguments", "error"), [((0, 1), ValueError), ((1, 0), ValueError), ((1.5, 1), TypeError)]
)
def test_parts_refuse_what_is_no_count(arguments, error):
    with pytest.raises(error, match="give"):
        Parts(*arguments, Ranks(0, 0, 1, CPU))
    with pytest.raises(TypeError, match="ranks is 2, but must be the Ranks"):
        Parts(4, 2, 2)


# ---- the rest of the package with a wrapped model


def test_a_checkpoint_of_a_wrapped_model_is_one_of_the_model(tmp_path, model):
    with processes():
        path = save_checkpoint(tmp_path / "1.pt", model=DistributedDataParallel(model), epoch=1)
        assert load_checkpoint(path).model.keys() == model.state_dict().keys()
        before = model[0].weight.detach().clone()
        nn.init.zeros_(model[0].weight)
        assert resume(load_checkpoint(path), model=DistributedDataParallel(model)) == 1
    assert torch.equal(model[0].weight, before)
    resume(load_checkpoint(path), model=model)


def test_fit_and_evaluate_take_a_wrapped_model(tmp_path, model):
    loader = DataLoader(program.data(), batch_size=5)
    expected = evaluate(model, loader, program.loss_fn, "cpu")
    alone = copy.deepcopy(model)
    fit(alone, loader, program.loss_fn, torch.optim.SGD(alone.parameters(), lr=0.1), "cpu", 2)
    with processes() as ranks:
        wrapped = DistributedDataParallel(model)
        found = evaluate(wrapped, loader, program.loss_fn, "cpu")
        assert found.loss == expected.loss and wrapped.training
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with RankAutoSave(tmp_path, ranks=ranks, model=wrapped, optimizer=optimizer) as saves:
            fit(wrapped, loader, program.loss_fn, optimizer, "cpu", 2, validation=loader, autosave=saves)
    assert_same(model.state_dict(), alone)


@pytest.mark.parametrize("as_batches", [True, False])
def test_fit_tells_the_sampler_the_epoch(model, as_batches):
    parts, seen = Parts(23, 5, Ranks(0, 0, 1, CPU)), []
    parts.set_epoch = seen.append
    options = (
        {"batch_sampler": parts} if as_batches else {"sampler": DistributedSampler(program.data(), 1, 0)}
    )
    loader = DataLoader(program.data(), **options)
    if not as_batches:
        loader.sampler.set_epoch = seen.append
        loader = DataLoader(program.data(), sampler=loader.sampler, batch_size=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, loader, program.loss_fn, optimizer, "cpu", range(2, 4))
    fit(model, loader, program.loss_fn, optimizer, "cpu", range(4, 5))
    assert seen == [2, 3, 4]


def test_autosave_refuses_to_write_in_the_background_beside_others(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="background=True with several ranks"):
        RankAutoSave(tmp_path, ranks=Ranks(0, 0, 2, CPU), model=model, optimizer=optimizer, background=True)
    with pytest.raises(TypeError, match="ranks is None"):
        RankAutoSave(tmp_path, ranks=None, model=model, optimizer=optimizer)


def test_ranks_that_the_saved_run_did_not_have_draw_other_numbers(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with processes() as ranks:
        with RankAutoSave(tmp_path, ranks=ranks, model=model, optimizer=optimizer) as one:
            list(one.epochs(1))
        drawn = []
        for rank in range(3):
            saves = RankAutoSave(tmp_path, ranks=ranks, model=model, optimizer=optimizer)
            saves.ranks = Rank(rank)
            with saves:
                for _ in saves.epochs(2):
                    drawn.append((torch.rand(3).tolist(), random.random(), numpy.random.random()))
                    break
    expected = load_checkpoint(one.path).rng
    torch.set_rng_state(expected["cpu"])
    assert drawn[0][0] == torch.rand(3).tolist()
    for numbers in zip(*drawn, strict=True):
        assert len(set(map(str, numbers))) == 3


class Rank(Ranks):
    """One of three, that needs no others; `told` is what they would hear from it."""

    def __init__(self, rank, others=None):
        super().__init__(rank, rank, 3, CPU)
        vars(self).update(others=others, told=[])

    def on_main(self, function):
        return function()

    def _gather(self, value):
        self.told.append(value)
        return [value, value, self.others or value]


def test_a_rank_that_cannot_read_the_checkpoint_keeps_the_others_from_loading_it(tmp_path, model):
    run = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    with RankAutoSave(tmp_path, ranks=Ranks(0, 0, 1, CPU), **run) as saves:
        list(saves.epochs(1))
    nn.init.zeros_(model[0].weight)
    ranks = Rank(0, others=CheckpointError("rank 2 sees no such file"))
    refused = pytest.raises(CheckpointError, match="rank 2 sees")
    with RankAutoSave(tmp_path, ranks=ranks, **run) as saves, refused:
        saves.epochs(2)
    assert not model[0].weight.any()


def test_what_fails_on_a_rank_while_loading_a_checkpoint_is_told_to_the_others(tmp_path, model, monkeypatch):
    run = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    with RankAutoSave(tmp_path, ranks=Ranks(0, 0, 1, CPU), **run) as saves:
        list(saves.epochs(1))
    monkeypatch.setattr(model, "load_state_dict", lambda state: 1 / 0)
    ranks = Rank(0)
    with RankAutoSave(tmp_path, ranks=ranks, **run) as saves, pytest.raises(CheckpointError):
        saves.epochs(2)
    assert isinstance(ranks.told[-1], Exception)


# ---- shards


@pytest.fixture
def shards(tmp_path, model):
    folder, optimizer = tmp_path / "step-1", torch.optim.Adam(model.parameters())
    model(torch.ones(2, 6).double()).sum().backward()
    optimizer.step()
    with processes() as ranks:
        save_shards(folder, ranks, model=model, optimizer=optimizer, extra={"epoch": 3})
        yield folder, ranks, model, optimizer


def test_shards_come_back(shards):
    folder, ranks, model, optimizer = shards
    before = [each.clone() for each in model.state_dict().values()]
    moments = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    for each in model.state_dict().values():
        each.zero_()
    optimizer.state.clear()
    assert load_shards(folder, ranks, model=model, optimizer=optimizer) == {"epoch": 3}
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moments)


def test_sha256sum_agrees(shards):
    done = subprocess.run(
        ["sha256sum", "-c", "digests.sha256"], cwd=shards[0], capture_output=True, timeout=60
    )
    assert done.returncode == 0


def test_torch_reads_the_tensors(shards):
    folder, _, model, _ = shards
    found = {f"model.{name}": torch.zeros_like(each) for name, each in model.state_dict().items()}
    distributed_checkpoint.load(
        found, storage_reader=distributed_checkpoint.HuggingFaceStorageReader(str(folder)), no_dist=True
    )
    assert all(torch.equal(found[f"model.{name}"], each) for name, each in model.state_dict().items())


def test_folders_that_the_machines_do_not_share_are_not_sealed(tmp_path, model):
    folder = tmp_path / "step-1"
    said = r"rank 0 does not see rank-00001.safetensors, rank-00002.safetensors, expected .* machines share"
    with pytest.raises(CheckpointError, match=said):
        save_shards(folder, Rank(0), model=model)
    assert not (folder / "digests.sha256").exists()


@pytest.mark.parametrize("how", [*itertools.product((False, True), repeat=2)])
def test_tied_weights_come_back_whether_they_are_spread_or_not(tmp_path, how):
    def tied(spread: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        model[1].weight = model[0].weight
        return fully_shard(model) if spread else model

    def whole(model: nn.Module) -> list[torch.Tensor]:
        state = model.state_dict().values()
        return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in state]

    with processes() as ranks:
        first, second = map(tied, how)
        save_shards(tmp_path / "step-1", ranks, model=first)
        load_shards(tmp_path / "step-1", ranks, model=second)
        assert all(map(torch.equal, whole(first), whole(second)))


def test_what_is_not_spread_is_read_on_the_cpu(shards):
    """A model on a GPU would lie there twice; meta stands for it."""
    parts = shards_module._stored_parts(shards[0])["model.0.weight"]
    weight = shards[2][0].weight
    filled = shards_module._filled(torch.empty_like(weight, device="meta"), "weight", parts)
    assert filled.device == CPU and torch.equal(filled, weight)


def test_what_fails_on_a_rank_while_loading_shards_is_told_to_the_others(shards, monkeypatch):
    folder, _, model, optimizer = shards
    model(torch.ones(2, 6).double()).sum().backward()
    monkeypatch.setattr(shards_module, "_set_state", lambda *given: 1 / 0)
    ranks = Rank(0)
    with pytest.raises(CheckpointError, match=r"step-1 was not loaded. ZeroDivisionError"):
        load_shards(folder, ranks, model=model, optimizer=optimizer)
    assert isinstance(ranks.told[-1], ZeroDivisionError)
    assert model[0].weight.grad is not None  # since the optimizer has a state, they need not go


def damage(folder: Path, how: str) -> None:
    if how == "unfinished":
        (folder / "digests.sha256").unlink()
    elif how == "more":
        (folder / "rank-00007.safetensors").touch()
    elif how == "gone":
        (folder / "rank-00000.safetensors").unlink()
    elif how == "cut short":
        os.truncate(folder / "rank-00000.safetensors", 100)
    else:
        content = bytearray((folder / how).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / how).write_bytes(content)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("unfinished", "has no digests.sha256: this save was not finished"),
        ("more", "holds also rank-00007.safetensors, expected the 2 files"),
        ("gone", "lacks rank-00000.safetensors"),
        ("cut short", "rank-00000.safetensors is damaged or cut short"),
        ("rank-00000.safetensors", "rank-00000.safetensors is damaged"),
        ("run.safetensors", "run.safetensors is damaged"),
        ("digests.sha256", "damaged|lacks"),
    ],
)
def test_damaged_shards_are_refused(shards, how, said):
    folder, ranks, model, optimizer = shards
    damage(folder, how)
    before = model[0].weight.detach().clone()
    with pytest.raises(CheckpointError, match=said):
        load_shards(folder, ranks, model=model, optimizer=optimizer)
    assert torch.equal(model[0].weight, before)


def test_shards_of_another_model_are_refused(shards):
    folder, ranks, model, _ = shards
    with pytest.raises(CheckpointError, match=r"optimizer: Adam .* in the file, None given"):
        load_shards(folder, ranks, model=model)
    for other in (nn.Sequential(nn.Linear(6, 5)).double(), nn.Linear(6, 4).double()):
        with pytest.raises(CheckpointError, match=r"step-1 (does not fit|was not loaded)"):
            load_shards(folder, ranks, model=other)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        load_shards(folder / "no", ranks, model=model)
    for call in (save_shards, load_shards):
        with pytest.raises(TypeError, match="folder is None, but must be the name of a folder"):
            call(None, ranks, model=model)


class Hostile:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_nothing_of_shards_is_unpickled(shards, tmp_path):
    """A stranger's folder, with right digests, as earlier versions wrote it, and under the names of now."""
    folder, ranks, model, optimizer = shards
    content = pickle.dumps(Hostile(tmp_path / "marker"))
    for name in (".metadata", "run.safetensors", "rank-00000.safetensors"):
        (folder / name).write_bytes(content)
        lines = [
            f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in folder.iterdir()
        ]
        (folder / "digests.sha256").write_text("".join(line for line in lines if "digests" not in line))
        with pytest.raises(CheckpointError, match=r"earlier versions|was not loaded"):
            load_shards(folder, ranks, model=model, optimizer=optimizer)
        (folder / ".metadata").unlink(missing_ok=True)
    assert not (tmp_path / "marker").exists()
    pickle.loads(content)
    assert (tmp_path / "marker").exists()


def test_shards_that_do_not_fit_change_nothing(shards):
    folder, ranks, model, optimizer = shards
    others = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), momentum=0.9)
    for other in others:
        with pytest.raises(CheckpointError, match=r"optimizer: Adam with .* in the file"):
            load_shards(folder, ranks, model=model, optimizer=other)
    changes = {
        b'0.weight\\":{\\"saved_offsets\\":[0,0]': (
            b'0.weight\\":{\\"saved_offsets\\":[0,3]',
            r"0.weight: torch.float64 \[4, 9\] in the file",
        ),
        b"saved_offsets": (b"saved_affsets", "KeyError"),
        b"DCP_": (b"ACP_", "has no DCP_SHARDING_INFO, as save_shards writes it: take a folder that it wrote"),
        b"[0,0]": (b"[0,x]", "JSON is not as it was written"),
        b"[0,0]}": (b"[-01]}", "JSON is not as it was written"),
        b"[0,0]},": (b"[ -1]},", "at no place"),
        b"exp_avg": (b"exp_avx", "exp_avg: None in the file"),
    }
    path = folder / "rank-00000.safetensors"
    content, before = path.read_bytes(), copy.deepcopy(model.state_dict())
    nn.init.zeros_(model[0].weight)
    before["0.weight"].zero_()
    for old, (new, said) in changes.items():
        path.write_bytes(content.replace(old, new))
        listed = (folder / "digests.sha256").read_text()
        digests = [hashlib.sha256(each).hexdigest() for each in (content, path.read_bytes())]
        (folder / "digests.sha256").write_text(listed.replace(*digests))
        with pytest.raises(CheckpointError, match=f"(?s)step-1.*{said}"):
            load_shards(folder, ranks, model=model, optimizer=optimizer)
        (folder / "digests.sha256").write_text(listed)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("metadata", "said"),
    [({}, "no DCP"), ({"DCP_SHARDING_INFO": '{"a":{"saved_offsets":[-1]}}'}, "a part of a at no place")],
)
def test_the_name_of_a_shard_steers_no_terminal(shards, metadata, said):
    folder, ranks, model, optimizer = shards
    added = folder / "rank-9\x1b[31m.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, added, metadata)
    with (folder / "digests.sha256").open("a") as file:
        file.write(f"{hashlib.sha256(added.read_bytes()).hexdigest()}  {added.name}\n")
    with pytest.raises(CheckpointError, match=rf"rank-9\\x1b\[31m.safetensors has {said}"):
        load_shards(folder, ranks, model=model, optimizer=optimizer)


def test_shards_of_a_model_with_nan_are_not_written(shards):
    folder, ranks, model, _ = shards
    nn.init.constant_(model[0].weight, float("nan"))
    with pytest.raises(CheckpointError, match=r"step-2 was not written: the model's 0.weight holds NaN"):
        save_shards(folder.with_name("step-2"), ranks, model=model)


def test_a_finished_save_is_not_overwritten_but_an_unfinished_one_is(shards):
    folder, ranks, model, optimizer = shards
    with pytest.raises(CheckpointError, match="expected a new folder"):
        save_shards(folder, ranks, model=model)
    damage(folder, "unfinished")
    (folder / "rank-00009.safetensors").touch()
    save_shards(folder, ranks, model=model, optimizer=optimizer)
    assert load_shards(folder, ranks, model=model, optimizer=optimizer) is None
    damage(folder, "unfinished")
    (folder / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=r"notes.txt"):
        save_shards(folder, ranks, model=model)
    assert (folder / "notes.txt").exists()


# ---- several processes


class Launched:
    """A script under torchrun; `left` are those of its processes that still run."""

    def __init__(self, ranks: int, *arguments: object, restarts: int = 0) -> None:
        self.mark = f"DISTRIBUTED_TEST={uuid.uuid4().hex}"
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", "--rdzv-backend=c10d"]
        command += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", program.__file__]
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, name: value, "OMP_NUM_THREADS": "1"},
        )

    def left(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def ranks(self) -> dict[int, int]:
        """Return the process ids of the ranks."""
        found = {}
        for pid in self.left():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if (rank := re.search(rb"\0RANK=(\d+)\0", environ)) and b"torch.distributed.run" not in command:
                found.setdefault(int(rank[1]), pid)
        return found

    def wait(self) -> str:
        """Return the output, after seeing that no process is left."""
        try:
            output, _ = self.process.communicate(timeout=300)
            for _ in range(100):
                if not self.left():
                    return output
                time.sleep(0.1)
            raise AssertionError(f"processes are left: {self.left()}\n{output}")
        finally:
            for pid in self.left():
                os.kill(pid, signal.SIGKILL)
            self.process.wait()


def launch(ranks: int, *arguments: object, restarts: int = 0) -> str:
    """Run to the end, which has to be a good one."""
    launched = Launched(ranks, *arguments, restarts=restarts)
    output = launched.wait()
    assert launched.process.returncode == 0, output
    return output


def one_process(batch_size: int = program.BATCH, drop_last: bool = False) -> tuple[nn.Module, list[float]]:
    """Train as any single process would, without this package."""
    model, optimizer = program.parts_of_a_run()
    inputs, targets = program.data().tensors
    losses = []
    for epoch in range(program.EPOCHS):
        generator = torch.Generator().manual_seed(program.SEED + epoch)
        for some in torch.randperm(program.SAMPLES, generator=generator).split(batch_size):
            if len(some) == batch_size or not drop_last:
                loss = program.loss_fn(model(inputs[some]), targets[some])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item() * len(some))
    return model, losses


def assert_same(found: dict[str, torch.Tensor], model: nn.Module) -> None:
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-12)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_several_ranks_end_with_the_weights_of_one_process(tmp_path, ranks):
    launch(ranks, "train", tmp_path)
    found = torch.load(tmp_path / "train.pt")
    model, losses = one_process()
    assert_same(found["weights"], model)
    assert found["losses"] == pytest.approx(losses, abs=1e-12)
    assert len({tuple(each) for each in found["drawn"]}) == ranks  # each draws its own numbers


@linux
@pytest.mark.slow
def test_fit_and_evaluate_in_two_ranks(tmp_path):
    launch(2, "fit", tmp_path)
    found = torch.load(tmp_path / "fit.pt")
    model, losses = one_process(batch_size=4, drop_last=True)
    assert_same(found["weights"], model)
    assert found["train_loss"] == pytest.approx(sum(losses[-5:]) / 20, abs=1e-12)
    expected = evaluate(model, [program.data().tensors], program.loss_fn, "cpu")
    loss, accuracy, confusion, samples = found["evaluation"]
    assert (loss, accuracy) == pytest.approx((expected.loss, expected.accuracy), abs=1e-12)
    assert torch.equal(confusion, expected.confusion) and samples == program.SAMPLES
    assert found["alone"] == 12


@linux
@pytest.mark.slow
def test_sums_and_what_is_said_of_mistakes(tmp_path):
    launch(2, "collect", tmp_path)
    found = torch.load(tmp_path / "collect.pt")
    assert (found["whole"], found["mixed"]) == (2**61 + 1, 2.5)
    assert found["number"] == pytest.approx(0.3) and found["untouched"] == [[0, 2], [1, 3]]
    assert found["tensor"].tolist() == [[0, 6], [3, 9]]
    assert found["main"] == ["from 0", "from 0"]
    for rank, (known, odd, shapes, kinds) in enumerate(found["said"]):
        assert known == "CheckpointError: no room"
        assert odd == ("DistributedError: rank 0: Odd" if rank else "Odd") + ": cannot be pickled"
        assert "rank 0: a tensor float32 [2] on the cpu, rank 1: a tensor float32 [3] on the cpu" in shapes
        assert "rank 0: 1.0, rank 1: a tensor float32 [2] on the cpu" in kinds


@pytest.mark.thorough
@linux
@pytest.mark.slow
def test_other_models_on_other_ranks_end_all(tmp_path):
    launched = Launched(2, "other_models", tmp_path)
    output = launched.wait()
    assert launched.process.returncode != 0
    assert "appears not to match sizes of the same param in process 0" in output  # torch's own words


NOISY = "--dropout", 0.4, "--noise"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return how two ranks end that nothing stops, with random numbers everywhere."""

    @functools.cache
    def run(workers: int) -> dict:
        folder = tmp_path_factory.mktemp("undisturbed")
        launch(2, "train", folder, *NOISY, "--workers", workers)
        return torch.load(folder / "train.pt")

    return run


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "kills"),
    [(2, 2), *(pytest.param(workers, 5, marks=pytest.mark.thorough) for workers in (0, 2))],
)
def test_killed_ranks_are_started_again_and_end_with_the_same_bits(tmp_path, undisturbed, workers, kills):
    chance = random.Random(workers)
    # at most three steps an attempt, of which at most two are saved: all are killed, the first after a save
    dies = ["3:0", *(f"{chance.randint(1, 3)}:{chance.randint(0, 1)}" for _ in range(kills - 1))]
    output = launch(2, "train", tmp_path, *NOISY, "--workers", workers, "--die", *dies, restarts=kills)
    expected, found = undisturbed(workers), torch.load(tmp_path / "train.pt")
    assert found["steps"] < expected["steps"] == 15 and "going on after" in output
    assert (expected["attempt"], found["attempt"]) == (0, kills)
    for name, weights in expected["weights"].items():
        assert torch.equal(found["weights"][name], weights)
    assert (found["losses"], found["drawn"]) == (expected["losses"], expected["drawn"])


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "to", "workers"),
    [
        pytest.param("SIGTERM", "launcher", 0, marks=pytest.mark.thorough),
        pytest.param("SIGTERM", 1, 0, marks=pytest.mark.thorough),
        pytest.param("SIGUSR1", 1, 0, marks=pytest.mark.thorough),
        ("SIGTERM", "all but the launcher", 2),
    ],
)
def test_a_signal_stops_all_ranks_after_one_save(tmp_path, undisturbed, name, to, workers):
    options = *NOISY, "--workers", workers
    launched = Launched(2, "train", tmp_path, *options, "--pause", 0.3)
    while not (tmp_path / "rank-1-step-2").exists() and launched.process.poll() is None:
        time.sleep(0.05)
    if to == "launcher":
        meant = [launched.process.pid]
    else:  # a cluster reaches the workers of the loaders, too
        meant = [launched.ranks()[to]] if to == 1 else [*set(launched.left()) - {launched.process.pid}]
    for pid in meant:
        with suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, name))
    output = launched.wait()
    assert output.count("asked this run to stop. It is saved in") == 1, output
    steps = [len(list(tmp_path.glob(f"rank-{rank}-step-*"))) for rank in (0, 1)]
    assert steps[0] == steps[1] < 15
    saved = max(tmp_path.glob("autosave-*.safetensors"))
    assert load_checkpoint(saved).epoch * 5 + load_checkpoint(saved).step == steps[0]
    launch(2, "train", tmp_path, *options)
    expected, found = undisturbed(workers), torch.load(tmp_path / "train.pt")
    for key, weights in expected["weights"].items():
        assert torch.equal(found["weights"][key], weights)
    assert found["losses"] == expected["losses"] and found["steps"] == 15 - steps[0]


@pytest.mark.thorough
@linux
@pytest.mark.slow
def test_another_number_of_ranks_resumes(tmp_path):
    for ranks, after in ((2, 4), (4, 3), (1, 4)):
        launched = Launched(ranks, "train", tmp_path, "--die", f"{after}:{ranks - 1}")
        launched.wait()
        assert launched.process.returncode != 0
    launch(3, "train", tmp_path)
    found = torch.load(tmp_path / "train.pt")
    assert found["steps"] < 11
    model, losses = one_process()
    assert_same(found["weights"], model)
    assert found["losses"] == pytest.approx(losses, abs=1e-12)


@linux
@pytest.mark.slow
def test_no_rank_outlives_a_killed_launcher(tmp_path):
    launched = Launched(2, "train", tmp_path, "--pause", 0.5)
    while not (tmp_path / "rank-1-step-1").exists() and launched.process.poll() is None:
        time.sleep(0.05)
    os.kill(launched.process.pid, signal.SIGKILL)
    output = launched.wait()
    assert "torchrun is gone" in output and "It is saved in" in output


@linux
@pytest.mark.slow
def test_shards_of_two_ranks_go_on_in_four_and_in_one(tmp_path):
    for ranks in (2, 4, 1):
        launch(ranks, "sharded", tmp_path)
    found = torch.load(tmp_path / "sharded.pt")
    assert found["step"] == 9
    assert len(list((tmp_path / "step-006").glob("rank-*.safetensors"))) == 4
    model, optimizer = program.parts_of_a_run()
    inputs, targets = program.data().tensors
    for _ in range(9):
        optimizer.zero_grad()
        program.loss_fn(model(inputs), targets).backward()
        optimizer.step()
    assert_same(found["weights"], model)
