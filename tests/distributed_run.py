"""A short run of several ranks, for the tests to launch, kill and resume.

    torchrun --nproc-per-node 2 tests/distributed_run.py train FOLDER [--die 3:1 5:0] …

Rank 0 writes what it ended with to ``FOLDER/TASK.pt``.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from gpulesson.checkpoint import CheckpointError
from gpulesson.evaluation import evaluate
from gpulesson.long_runs.distributed import (
    Parts,
    RankAutoSave,
    Ranks,
    load_shards,
    processes,
    save_shards,
)
from gpulesson.training import fit

SAMPLES, BATCH, EPOCHS, SEED = 23, 5, 3, 7  # five batches, the last of three samples
loss_fn = nn.CrossEntropyLoss()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.arange(SAMPLES) % 3)


class Noisy(Dataset):
    """The samples with noise of the global generator."""

    def __init__(self) -> None:
        self.data = data()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = self.data[index]
        return inputs + 0.1 * torch.randn(6, dtype=torch.float64), target


def parts_of_a_run(dropout: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def train(ranks: Ranks, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train, saving every two steps; ``--die 3:1`` kills rank 1 after three steps of the first attempt."""
    model, optimizer = parts_of_a_run(options.dropout)
    torch.manual_seed(100 + ranks.rank)
    wrapped = DistributedDataParallel(model)
    parts = Parts(SAMPLES, BATCH, ranks, seed=SEED)
    dataset = Noisy() if options.noise else data()
    loader = DataLoader(dataset, batch_sampler=parts, num_workers=options.workers)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    dies = options.die[attempt] if attempt < len(options.die) else ""
    losses: list[float] = []
    steps = 0
    saves = RankAutoSave(
        folder, ranks=ranks, model=wrapped, optimizer=optimizer, every_steps=2, extra={"losses": losses}
    )
    with saves:
        for epoch in saves.epochs(EPOCHS):
            parts.set_epoch(epoch)
            for (inputs, targets), part in saves.batches(parts.weighted(loader)):
                loss = loss_fn(wrapped(inputs), targets)
                optimizer.zero_grad()
                (loss * part.weight).backward()
                optimizer.step()
                losses.append(ranks.sum(loss.item() * part.size))
                steps += 1
                (folder / f"rank-{ranks.rank}-step-{steps}").touch()
                time.sleep(options.pause)
                if dies == f"{steps}:{ranks.rank}":
                    os.kill(os.getpid(), signal.SIGKILL)
                saves.step()
    drawn = ranks._gather(torch.rand(2).tolist())
    result = {"weights": model.state_dict(), "losses": losses, "drawn": drawn}
    return {**result, "steps": steps, "attempt": attempt}


def use_fit(ranks: Ranks, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train with fit, in equal parts, and evaluate uneven ones."""
    model, optimizer = parts_of_a_run()
    wrapped = DistributedDataParallel(model)
    parts = Parts(SAMPLES, 4, ranks, seed=SEED, drop_last=True)
    loader = DataLoader(data(), batch_sampler=parts)
    own = DataLoader(Subset(data(), range(ranks.rank, SAMPLES, ranks.world_size)), batch_size=2)
    with RankAutoSave(folder, ranks=ranks, model=wrapped, optimizer=optimizer, every_steps=2) as saves:
        history = fit(wrapped, loader, loss_fn, optimizer, "cpu", EPOCHS, validation=own, autosave=saves)
    normed = DistributedDataParallel(nn.Sequential(model, nn.BatchNorm1d(3)).double())  # has buffers to send
    joined = ranks.join(evaluate(wrapped, own, loss_fn, "cpu"))
    return {
        "weights": model.state_dict(),
        "train_loss": ranks.sum(history.train_loss[-1]) / ranks.world_size,
        "evaluation": [joined.loss, joined.accuracy, joined.confusion, joined.samples],
        "alone": evaluate(normed, own, loss_fn, "cpu").samples if ranks.is_main else 0,
    }


def collect(ranks: Ranks, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Sum, ask rank 0, and see what is said of mistakes."""

    def fail() -> None:
        raise CheckpointError("no room")

    def fail_oddly() -> None:
        class Odd(Exception):
            pass

        raise Odd("cannot be pickled")

    said = []
    for mistake in (
        lambda: ranks.on_main(fail),
        lambda: ranks.on_main(fail_oddly),
        lambda: ranks.sum(torch.zeros(2 + ranks.rank)),
        lambda: ranks.sum(torch.zeros(2) if ranks.rank else 1.0),
    ):
        try:
            mistake()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    tensor = torch.arange(4.0).reshape(2, 2).t() * (ranks.rank + 1)
    return {
        "whole": ranks.sum(2**60 + ranks.rank),
        "number": ranks.sum(0.1 * (ranks.rank + 1)),
        "mixed": ranks.sum(0.5 if ranks.rank else 2),
        "tensor": ranks.sum(tensor),
        "untouched": tensor.tolist(),
        "main": ranks._gather(ranks.on_main(lambda: f"from {ranks.rank}")),
        "said": ranks._gather(said),
    }


def sharded(ranks: Ranks, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Load shards if there are any, take three steps with FSDP2, and save shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, optimizer = parts_of_a_run()
    mesh = init_device_mesh("cpu", (ranks.world_size,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    before = sorted(folder.glob("step-*"))
    done = load_shards(before[-1], ranks, model=model, optimizer=optimizer)["step"] if before else 0
    inputs, targets = data().tensors
    parts = Parts(SAMPLES, SAMPLES, ranks, shuffle=False)
    (own,), (part,) = list(parts), parts.parts
    for _ in range(3):
        optimizer.zero_grad()
        (loss_fn(model(inputs[own]), targets[own]) * part.weight).backward()
        optimizer.step()
        done += 1
    save_shards(folder / f"step-{done:03}", ranks, model=model, optimizer=optimizer, extra={"step": done})
    whole = {name: each.full_tensor() for name, each in model.state_dict().items()}
    return {"weights": whole, "step": done}


def other_models(ranks: Ranks, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Wrap a model that has another shape on rank 1."""
    DistributedDataParallel(nn.Linear(2, 2 + ranks.rank))
    return {}


TASKS = {"other_models": other_models, "train": train, "fit": use_fit, "collect": collect, "sharded": sharded}


def main() -> None:
    """Do a task and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die", nargs="*", default=[])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    with processes(timeout=60) as ranks:
        found = TASKS[options.task](ranks, options.folder, options)
        if ranks.is_main:
            torch.save(found, options.folder / f"{options.task}.pt")


if __name__ == "__main__":
    main()
