"""What `test_process_groups` runs: ``rank_programs.py FOLDER``, in two processes with a practice GPU each.

Every function below `check` runs in both processes; ``FOLDER/RANK.json`` gets its result, or its error.
"""

import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKS = {}
BATCH, SAMPLES, STEPS = 7, 31, 20  # the last batch of an epoch has 3 rows


def check(function):
    CHECKS[function.__name__] = function
    return function


def batches():
    """Return 20 batches of three epochs, in double precision: the last ones have 3 rows."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 3, 6, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (SAMPLES,), generator=generator)
    found = []
    while len(found) < STEPS:
        order = torch.randperm(SAMPLES, generator=generator)
        found += [(inputs[rows], targets[rows]) for rows in order.split(BATCH)]
    return found[:STEPS]


def network(norm=False):
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 4, 3, bias=not norm)]  # behind it the norm takes any bias away
    layers += [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(64, 4)).double()


def train(model, parts, device, dtype=torch.float64, optimizer=torch.optim.AdamW):
    """Train with one of the parts, (rank, number), of each batch; their losses add up to the mean."""
    rank, number = parts
    optimizer = optimizer(model.parameters(), 1e-2)
    for inputs, targets in batches():
        mine = slice(rank, None, number)
        logits = model(inputs[mine].to(device, dtype))
        loss = nn.functional.cross_entropy(logits, targets[mine].to(device), reduction="sum")
        optimizer.zero_grad()
        (loss * number / len(targets)).backward()  # the gradients are averaged over the ranks
        optimizer.step()
    return model


def numbers(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


# -- collectives


@check
def names(rank, world, here):
    group = dist.new_group([0, 1], backend="nccl")
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(on_host := torch.full((2,), float(rank)), group=gloo)
    backends = [dist.get_backend(), dist.get_backend(group), dist.get_backend(gloo)]
    assert backends == ["nccl", "nccl", "gloo"] and on_host.tolist() == [1, 1]
    assert dist.is_nccl_available() and torch.cuda.device_count() == 2


@check
def reductions(rank, world, here):
    rows = torch.tensor([[1, 2], [2, 5]])
    sums = {"SUM": rows.sum(0), "MIN": rows.amin(0), "MAX": rows.amax(0), "PRODUCT": rows.prod(0)}
    for name, expected in {**sums, "AVG": rows.double().mean(0)}.items():
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
            values = rows[rank].to(here, dtype)
            work = dist.all_reduce(values, getattr(dist.ReduceOp, name), async_op=dtype is torch.int64)
            if work is not None:
                work.wait()
            assert (values.device, values.dtype) == (here, dtype)
            assert values.tolist() == expected.to(dtype).tolist(), (name, dtype)  # integers are cut off


@check
def exchanges(rank, world, here):
    mine, parts = torch.tensor([10.0 * rank, 10 * rank + 1], device=here), [torch.empty(2).to(here), None]
    parts[1] = parts[0].clone()
    dist.all_gather(parts, mine)
    dist.all_gather_into_tensor(whole := torch.empty(4, device=here), mine)
    dist.all_gather_into_tensor(in_rows := torch.empty(2, 2, device=here), mine)
    assert whole.tolist() == torch.cat(parts).tolist() == in_rows.flatten().tolist() == [0, 1, 10, 11]
    summed = [2 * value + 1 for value in (0, 1, 10, 11)[2 * rank : 2 * rank + 2]]
    dist.reduce_scatter_tensor(part := torch.empty(2, device=here), whole + rank)
    assert part.tolist() == summed
    dist.reduce_scatter(part, list((whole + rank).chunk(world)), op=dist.ReduceOp.AVG)
    assert part.tolist() == [value / 2 for value in summed]
    dist.broadcast(given := mine.clone(), 1)
    assert given.tolist() == [10, 11]
    dist.all_to_all_single(swapped := torch.empty(2, device=here), mine)
    assert swapped.tolist() == [rank, 10 + rank]
    rows, splits = torch.arange(6.0, device=here).view(3, 2) + 10 * rank, [1, 2] if rank == 0 else [2, 1]
    dist.all_to_all_single(received := torch.empty(3, 2, device=here), rows, splits, splits)
    assert received.tolist() == [[[0, 1], [10, 11], [12, 13]], [[2, 3], [4, 5], [14, 15]]][rank]
    dist.reduce(kept := torch.tensor([rank + 1.0], device=here), 0, dist.ReduceOp.AVG)
    assert rank or kept.item() == 1.5
    dist.gather(mine, parts if rank == 0 else None)
    assert rank or torch.equal(torch.cat(parts), whole)
    dist.scatter(given, [mine + 5 * n for n in range(world)] if rank == 0 else None)
    assert given.tolist() == [5 * rank, 5 * rank + 1]
    dist.send(mine, 1) if rank == 0 else dist.recv(given, 0)
    assert given.tolist() == [0, 1]
    dist.barrier()
    assert {tensor.device for tensor in (*parts, whole, part, given, swapped, in_rows)} == {here}


@check
def objects(rank, world, here):
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank})
    given = [torch.ones(2, device=here) * rank]
    dist.broadcast_object_list(given, 1, device=here)
    assert found == [{"rank": 0}, {"rank": 1}] and given[0].tolist() == [1, 1]


@check
def received_on_the_host(rank, world, here):
    """From any process, where Gloo serves the host."""
    group = dist.new_group(backend="cpu:gloo,cuda:nccl")
    values = torch.tensor([rank + 5.0])
    dist.send(values, 1, group=group) if rank == 0 else dist.recv(values, group=group)
    assert values.item() == 5


@check
def averages(rank, world, here):
    """In every way to ask for them; each process has its rank and ten times that."""
    import torch.distributed._functional_collectives as collectives

    group, average = dist.group.WORLD, dist.ReduceOp.AVG
    floats, integers = (
        torch.tensor([rank, 10 * rank], device=here, dtype=dtype) for dtype in (torch.float32, torch.int64)
    )
    options = dist.AllreduceOptions()
    options.reduceOp = average
    for reduce in (
        lambda values: group.allreduce([values], options).wait(),
        lambda values: group.allreduce([values], options).wait(),  # they are as before
        lambda values: group.allreduce(values, average).wait(),
        lambda values: group.allreduce([values], op=average).wait(),
        lambda values: dist.all_reduce_coalesced([values.clone(), values], average),
    ):
        reduce(values := floats.clone())
        assert values.tolist() == [0.5, 5]
    dist.all_reduce_coalesced(several := [integers.clone(), integers.clone()], average)
    assert several[1].tolist() == [0, 5]
    dist.reduce_scatter_tensor(part := torch.empty(1, device=here), floats, average)
    functional = collectives.wait_tensor(collectives.reduce_scatter_tensor(floats, "avg", 0, group))
    assert part.tolist() == functional.tolist() == [[0.5, 5][rank]]
    assert collectives.all_reduce(floats, "avg", group).device == here

    class Other(threading.Thread):
        def run(self):  # without what a thread does before
            dist.all_reduce(floats, average)

    thread = Other()
    thread.start()
    thread.join()
    assert floats.tolist() == [0.5, 5]


# -- models


@check
def data_parallel(rank, world, here):
    model = DistributedDataParallel(network().to(here), device_ids=[here.index])
    train(model, (rank, world), here)
    assert {parameter.device for parameter in model.parameters()} == {here}
    return numbers(model.module.state_dict())


@check
def synchronised_norm(rank, world, here):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(network(norm=True)).to(here)
    return numbers(train(DistributedDataParallel(model), (rank, world), here).module.state_dict())


@check
def fully_sharded(rank, world, here):
    from torch.distributed.fsdp import fully_shard

    single = network().float()  # whose gradients are averaged; those of float64 are divided before
    train(fully_shard(single), (rank, world), here, torch.float32, torch.optim.SGD)
    model = network()
    for layer in (model[0], model[3], model):
        fully_shard(layer)
    train(model, (rank, world), here)
    first = model[0].weight
    assert (first.device, first.to_local().device) == (here, here)
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    held = torch.tensor(sum(value.to_local().numel() for value in model.state_dict().values())).to(here)
    assert held > 0
    dist.all_reduce(held)
    assert held == sum(value.numel() for value in whole.values())
    single = {name: value.full_tensor() for name, value in single.state_dict().items()}
    return {"weights": numbers(whole), "float32": numbers(single)}


@check
def saved_in_shards(rank, world, here):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(network())
    state, folder = model.state_dict(), Path(sys.argv[1], "shards")
    before = {name: value.full_tensor().clone() for name, value in state.items()}
    dcp.save(state, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load(state, checkpoint_id=folder)
    assert all(torch.equal(state[name].full_tensor(), value) for name, value in before.items())


@check
def tensor_parallel(rank, world, here):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double().to(here)
    inputs = torch.randn(5, 8, dtype=torch.float64).to(here)
    whole = model(inputs)
    mesh = init_device_mesh("cuda", (world,))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    parted = model(inputs)
    parted.sum().backward()
    assert (parted - whole).abs().max().item() < 1e-12
    assert (model[0].weight.to_local().shape[0], parted.device) == (8, here)


# -- what is refused, and how the error begins

ON_THE_CPU = "RuntimeError: No backend type associated with device type cpu"
MISMATCH = "PracticeError: rank 0 calls {} of 2 elements, torch.float32, but rank 1 calls allreduce"
REFUSED = {
    ON_THE_CPU: lambda rank, here: dist.all_reduce(torch.ones(2)),
    "ValueError: Tensors must be CUDA and dense": lambda rank, here: dist.all_gather_into_tensor(
        torch.empty(4), torch.ones(2, device=here)
    ),
    "ValueError: Expected list of tensors on the same device": lambda rank, here: dist.all_reduce_coalesced(
        [torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")]
    ),
    "ValueError: Cannot use ReduceOp.BAND with NCCL": lambda rank, here: dist.all_reduce(
        torch.ones(2, dtype=torch.int64, device=here), dist.ReduceOp.BAND
    ),
    f"{ON_THE_CPU} (bitwise)": lambda rank, here: dist.all_reduce(
        torch.ones(2, dtype=torch.int64), dist.ReduceOp.BAND
    ),
    "RuntimeError: Backend nccl does not support recvAnysource": lambda rank, here: dist.recv(
        torch.ones(2, device=here)
    ),
    MISMATCH.format("allreduce"): lambda rank, here: dist.all_reduce(torch.ones(2 + rank, device=here)),
    MISMATCH.format("broadcast"): lambda rank, here: (
        dist.all_reduce(torch.ones(2, device=here)) if rank else dist.broadcast(torch.ones(2).to(here), 0)
    ),
    "RuntimeError: DDP expects same model across all ranks, but Rank 0 has": lambda rank, here: (
        DistributedDataParallel(nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + rank)]).to(here))
    ),
    "ValueError: DistributedDataParallel's input module must be on the same type": lambda rank, here: (
        DistributedDataParallel(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).to(here)]), [here.index])
    ),
}


@check
def refused(rank, world, here):
    for message, call in REFUSED.items():
        try:
            call(rank, here)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            expected = message.removesuffix(" (bitwise)") if rank == 0 else message.split(":")[0]
            assert found.startswith(expected), found
        else:
            raise AssertionError(f"not refused: {message}")


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    here = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", timeout=timedelta(seconds=120))
    found = {"argv": sys.argv[2:]}
    for name, function in CHECKS.items():
        try:
            found[name] = function(rank, world, here)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
