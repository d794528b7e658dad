"""What `test_process_groups` runs: ``rank_programs.py FOLDER``, in processes with a practice GPU each.

Each function below `check` is tried in every process; what it returns, or the error that it raises, is
written into ``FOLDER/RANK.json``.
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
    on_host = torch.full((2,), float(rank))
    dist.all_reduce(on_host, group=gloo)
    backends = [dist.get_backend(), dist.get_backend(group), dist.get_backend(gloo)]
    return [*backends, dist.is_nccl_available(), torch.cuda.device_count(), on_host.tolist()]


@check
def reductions(rank, world, here):
    found = {}
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
            values = torch.tensor([rank + 1, 3 * rank + 2], dtype=dtype, device=here)
            work = dist.all_reduce(values, getattr(dist.ReduceOp, name), async_op=dtype is torch.int64)
            if work is not None:
                work.wait()
            assert values.device == here and values.dtype == dtype
            found[f"{name} {dtype}"] = values.tolist()
    return found


@check
def exchanges(rank, world, here):
    mine = torch.tensor([10.0 * rank, 10 * rank + 1], device=here)
    found, parts = {}, [torch.empty(2, device=here) for _ in range(world)]
    dist.all_gather(parts, mine)
    found["all_gather"] = [part.tolist() for part in parts]
    whole = torch.empty(world * 2, device=here)
    dist.all_gather_into_tensor(whole, mine)
    found["all_gather_into_tensor"] = whole.tolist()
    dist.all_gather_into_tensor(in_rows := torch.empty(world, 2, device=here), mine)
    found["rows"] = in_rows.tolist()
    dist.reduce_scatter_tensor(part := torch.empty(2, device=here), whole + rank)
    found["reduce_scatter_tensor"] = part.tolist()
    dist.reduce_scatter(part, list((whole + rank).chunk(world)), op=dist.ReduceOp.AVG)
    found["reduce_scatter"] = part.tolist()
    dist.broadcast(given := mine.clone(), 1)
    found["broadcast"] = given.tolist()
    dist.all_to_all_single(swapped := torch.empty(2, device=here), mine)
    found["all_to_all_single"] = swapped.tolist()
    rows = torch.arange(6.0, device=here).view(3, 2) + 10 * rank
    splits = [1, 2] if rank == 0 else [2, 1]
    received = torch.empty(3, 2, device=here)
    dist.all_to_all_single(received, rows, splits, splits)
    found["rows of all_to_all_single"] = received.tolist()
    dist.reduce(kept := torch.tensor([rank + 1.0], device=here), 0, dist.ReduceOp.AVG)
    found["reduce"] = kept.tolist()
    dist.gather(mine, parts if rank == 0 else None)
    found["gather"] = [part.tolist() for part in parts] if rank == 0 else None
    dist.scatter(given, [mine + 5 * n for n in range(world)] if rank == 0 else None)
    found["scatter"] = given.tolist()
    if rank < 2:
        dist.send(mine, 1) if rank == 0 else dist.recv(given, 0)
        found["send"] = given.tolist()
    dist.barrier()
    assert {tensor.device for tensor in (*parts, whole, part, given, swapped, in_rows)} == {here}
    return found


@check
def objects(rank, world, here):
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank})
    given = [torch.ones(2, device=here) * rank]
    dist.broadcast_object_list(given, 1, device=here)
    return [found, given[0].tolist()]


@check
def received_on_the_host(rank, world, here):
    group = dist.new_group(backend="cpu:gloo,cuda:nccl")
    values = torch.tensor([rank + 5.0])
    dist.send(values, 1, group=group) if rank == 0 else dist.recv(values, group=group)
    return values.tolist()


@check
def functional(rank, world, here):
    import torch.distributed._functional_collectives as collectives

    total = collectives.all_reduce(torch.full((2,), rank + 1.0, device=here), "avg", dist.group.WORLD)
    assert total.device == here
    return (total * 2).tolist()


@check
def averages(rank, world, here):
    """In every way in which they can be asked for; each process has its rank and ten times that."""
    import torch.distributed._functional_collectives as collectives

    group, average = dist.group.WORLD, dist.ReduceOp.AVG
    mine = [
        torch.tensor([rank, 10 * rank], device=here, dtype=dtype) for dtype in (torch.float32, torch.int64)
    ]
    found = {}
    options = dist.AllreduceOptions()
    options.reduceOp = average
    for name in "options", "options again":
        group.allreduce([values := mine[0].clone()], options).wait()
        found[name] = values
    group.allreduce(values := mine[0].clone(), average).wait()
    found["by itself"] = values
    group.allreduce([values := mine[0].clone()], op=average).wait()
    found["by name"] = values
    for name, values in zip(("coalesced floats", "coalesced integers"), mine, strict=True):
        dist.all_reduce_coalesced(several := [values.clone(), values.clone()], average)
        found[name] = several[1]
    dist.reduce_scatter_tensor(part := torch.empty(1, device=here), mine[0], average)
    dist.all_gather_into_tensor(whole := torch.empty(world, device=here), part)
    found["parts"] = whole
    part = collectives.wait_tensor(collectives.reduce_scatter_tensor(mine[0], "avg", 0, group))
    dist.all_gather_into_tensor(whole := torch.empty(world, device=here), part)
    found["functional parts"] = whole

    class Other(threading.Thread):
        def run(self):  # without what a thread does before
            dist.all_reduce(mine[0], average)

    thread = Other()
    thread.start()
    thread.join()
    found["thread"] = mine[0]
    return numbers(found)


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
    held = sum(value.to_local().numel() for value in model.state_dict().values())
    single = {name: value.full_tensor() for name, value in single.state_dict().items()}
    return {"weights": numbers(whole), "held": held, "float32": numbers(single)}


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
    return all(torch.equal(state[name].full_tensor(), value) for name, value in before.items())


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
    return [(parted - whole).abs().max().item(), model[0].weight.to_local().shape[0], str(parted.device)]


# -- what is refused


@check
def on_the_cpu(rank, world, here):
    dist.all_reduce(torch.ones(2))


@check
def partly_on_the_cpu(rank, world, here):
    dist.all_gather_into_tensor(torch.empty(2 * world), torch.ones(2, device=here))


@check
def on_two_devices(rank, world, here):
    dist.all_reduce_coalesced([torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")])


@check
def bitwise(rank, world, here):
    dist.all_reduce(torch.ones(2, dtype=torch.int64, device=here), dist.ReduceOp.BAND)


@check
def bitwise_on_the_cpu(rank, world, here):
    dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.BAND)


@check
def from_anybody(rank, world, here):
    dist.recv(torch.ones(2, device=here))


@check
def of_other_sizes(rank, world, here):
    dist.all_reduce(torch.ones(2 + rank, device=here))


@check
def something_else(rank, world, here):
    values = torch.ones(2, device=here)
    dist.broadcast(values, 0) if rank == 0 else dist.all_reduce(values)


@check
def other_models(rank, world, here):
    layers = [nn.Linear(2, 2) for _ in range(1 + rank)]
    DistributedDataParallel(nn.Sequential(*layers).to(here))


@check
def a_model_in_two_places(rank, world, here):
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).to(here)])
    DistributedDataParallel(model, device_ids=[here.index])


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
