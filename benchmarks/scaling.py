"""A step of DistributedDataParallel with one, two and four gloo processes, beside what the model says.

    python benchmarks/scaling.py [--rounds 5] [--steps 4]

In the same processes, one thread each: the time of an all-reduce, of a few bytes (latency) and of a bucket
(bandwidth); forward, backward and optimizer of a separate model in each process, without communication;
then steps with DDP. The last two take turns, A B B A. From the first two
:func:`gpulesson_tools.planning.speed.several_gpus.overlapped` works out the step: a floor, in which
communication hides behind the backward pass. On a CPU it cannot hide for free, as it needs a core,
too: beside the floor stands the sum of both, in which nothing is hidden.

Two networks: convolutions with few parameters, and wide linear layers with many. The batch of each process
stays the same, so that a step would take equally long if communication cost nothing and each process had its
own core. The control is the processor time of the steps without communication: where the processes
had less than 95 % of the cores that they could use, other programs ran, and the result is inconclusive.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gpulesson_tools.planning.speed.several_gpus import BUCKET, Collective, Compute, buckets, overlapped
from measuring import Result, about, options, spread

PROCESSES = 1, 2, 4
FEW = 1024
"""Bytes of an all-reduce that takes its latency alone."""


def convolutions() -> tuple[nn.Module, Tensor]:
    """Return a network with few parameters and much to compute, and a batch."""
    layers: list[nn.Module] = []
    for given, returned in ((3, 32), (32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(given, returned, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return network, torch.rand(16, 3, 32, 32)


def wide() -> tuple[nn.Module, Tensor]:
    """Return a network with many parameters for what it computes, and a batch."""
    layers = nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(2048, 10)), torch.rand(32, 784)


MODELS = {"convolutions": convolutions, "wide layers": wide}


def prepared(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, the same in each process, with a batch and its labels."""
    torch.manual_seed(0)
    network, images = make()
    return network, images, torch.arange(len(images)) % 10


def step(
    network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> tuple[float, float, float]:
    """Take a step; return the seconds of its forward and backward pass and of the optimizer."""
    times = [time.perf_counter()]
    loss = cross_entropy(network(images), labels)
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter())
    return times[1] - times[0], times[2] - times[1], times[3] - times[2]


def measured_step(make: Callable[[], Any], rounds: int, steps: int) -> tuple[list[Any], list[float], float]:
    """Return the parts of steps without communication, the times of steps with DDP, and the control."""
    sides = []
    for wrap in (lambda each: each, DistributedDataParallel):
        network, images, labels = prepared(make)
        network = wrap(network)
        sides.append((network, torch.optim.SGD(network.parameters(), 0.01, momentum=0.9), images, labels))
    found: tuple[list[Any], list[Any]] = [], []
    for _ in range(3):  # warm: DDP arranges its buckets once more after its first step
        for side in sides:
            step(*side)
    computing = 0.0
    for _ in range(rounds):
        for number in (0, 1, 1, 0):
            dist.barrier()
            start = time.process_time()
            found[number].extend(step(*sides[number]) for _ in range(steps))
            computing += (time.process_time() - start) * (number == 0)
    return found[0], [sum(parts) for parts in found[1]], computing / sum(map(sum, found[0]))


def all_reduce_seconds(nbytes: int, repeats: int) -> float:
    """Return the median time of an all-reduce."""
    values = torch.ones(nbytes // 4)
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        times.append(time.perf_counter() - start)
        values.fill_(1.0)
    return statistics.median(times[1:])


def process(rank: int, processes: int, folder: str, rounds: int, steps: int) -> None:
    """Measure in one of several processes; the first writes down the results of all."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=120),
    )
    found: dict[str, Any] = {
        "latency": all_reduce_seconds(FEW, 50 * rounds),
        "bucket": all_reduce_seconds(BUCKET, 4 * rounds),
    }
    for name, make in MODELS.items():
        alone, together, control = measured_step(make, rounds, steps)
        everyone: list[Any] = [None] * processes
        dist.all_gather_object(everyone, (alone, control))
        found[name] = {
            "alone": [parts for each, _ in everyone for parts in each],
            "ddp": together,
            "cores": sum(control for _, control in everyone),
        }
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()  # no process may leave while another still answers it
    dist.destroy_process_group()


def measured(processes: int, rounds: int, steps: int) -> dict[str, Any]:
    """Start the processes, and return their measurements."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (processes, folder, rounds, steps)
        mp.spawn(process, arguments, nprocs=processes, daemon=True)  # type: ignore[no-untyped-call]
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
        return found


def row(name: str, processes: int, found: dict[str, Any]) -> dict[str, Any]:
    """Put what was measured beside what the model says."""
    network, _ = MODELS[name]()
    sizes = [4 * each.numel() for each in reversed(list(network.parameters()))]
    share = 2 * (processes - 1) / processes
    bandwidth = share * BUCKET / (found["bucket"] - found["latency"])
    compute = Compute(*(statistics.median(part) for part in zip(*found[name]["alone"], strict=True)))
    latency = found["latency"] if processes > 1 else 0.0
    sent = [Collective(latency, share * size / bandwidth if share else 0.0) for size in buckets(sizes)]
    floor = overlapped(compute, sent, sent[-1:])
    added = compute.seconds + sum(each.seconds for each in sent)
    median = statistics.median(found[name]["ddp"])
    return {
        "what": f"{name}, {processes}",
        "gradients": sum(sizes) / 1e6,
        "compute": compute.seconds * 1e3,
        "sent": sum(each.seconds for each in sent) * 1e3,
        "floor": floor.seconds * 1e3,
        "added": added * 1e3,
        **{key: value * 1e3 for key, value in spread(found[name]["ddp"]).items()},
        "ratio": median / floor.seconds,
        "to_added": median / added,
        "bound": floor.bound,
        "cores": found[name]["cores"],
        "latency": latency * 1e6 if share else None,
        "bandwidth": bandwidth / 1e9 if share else None,
    }


COLUMNS = [
    ("what", "network, processes", ""),
    ("gradients", "gradients, MB", ".2f"),
    ("compute", "compute, ms", ".1f"),
    ("sent", "all-reduces, ms", ".1f"),
    ("floor", "model: all hidden, ms", ".1f"),
    ("added", "model: nothing hidden, ms", ".1f"),
    ("min", "measured, ms: min", ".1f"),
    ("median", "median", ".1f"),
    ("max", "max", ".1f"),
    ("ratio", "median / all hidden", ".2f"),
    ("to_added", "median / nothing hidden", ".2f"),
    ("bound", "bound by", ""),
    ("cores", "cores they had", ".2f"),
    ("latency", "all-reduce: latency, µs", ".0f"),
    ("bandwidth", "GB/s", ".2f"),
]


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "scaling", rounds=5, steps=4)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    facts = about(None, backend="gloo", rounds=chosen.rounds, steps_a_turn=chosen.steps)
    result = Result("scaling", "A step of DDP on one machine, measured and worked out", facts, COLUMNS)
    found = {number: measured(number, chosen.rounds, chosen.steps) for number in PROCESSES}
    for name in MODELS:
        result.rows += [row(name, number, found[number]) for number in PROCESSES]
    several = [each for each in result.rows if each["latency"] is not None]
    for each in several:
        result.claim(f"step of DDP, {each['what']} gloo processes: measured / model", each["ratio"], ".2f")
    cores = facts["cores"]
    result.notes.append(
        f"Each process has one thread. The machine has {cores} cores: four processes share them, and the "
        "time to compute is measured while they do."
    )
    shares = [
        each["cores"] / min(number, cores) for each, number in zip(result.rows, PROCESSES * 2, strict=True)
    ]
    result.claim("DDP with gloo processes, control: least share of the cores", min(shares), ".2f")
    if min(shares) < 0.95:
        result.notes.append(
            "Inconclusive: the control is below 0.95, so other programs ran at the same time."
        )
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
