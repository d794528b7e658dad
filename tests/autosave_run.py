"""A short run that saves itself, to be stopped and started again: it returns a digest of how it ended.

Whatever stopped it in between, the digest is that of a run that nothing stopped: of weights, optimizer,
scheduler, history, and the random numbers that come next.
"""

from __future__ import annotations

import hashlib
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gpulesson.checkpoint import AutoSave
from gpulesson.data import Batches
from gpulesson.step import Step
from gpulesson.training import fit

SAMPLES, BATCH = 44, 8  # six batches, the last one short
loss_fn = nn.CrossEntropyLoss()


class NoisySamples(Dataset):
    """Samples whose inputs torch, NumPy and Python disturb with random numbers at every access."""

    def __init__(self, number: int = 40) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.randn(6) * 0.1 + np.random.normal() * 0.01 + random.gauss(0, 0.01)
        return torch.arange(6.0).add(index).sin() + noise, index % 3


def noisy_parts(seed: int = 0, width: int = 16, device: str = "cpu") -> dict[str, Any]:
    """Seed all three sources, and build dropout, batch norm, Adam and a scheduler."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = nn.Sequential(
        nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.4), nn.Linear(width, 3)
    )
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def in_drawn_order(*data: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(each[some] for each in data) for some in torch.randperm(SAMPLES).split(BATCH)]


def make_run(
    feed: str = "loader", own_generator: bool = False, workers: int = 0, sampler: bool = False, **loader: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the loader, and what else a run has: dropout, batch norm, Adam, a scheduler."""
    parts = noisy_parts()
    generator = torch.Generator().manual_seed(1) if own_generator else None
    if feed == "indices":  # drawn by the loop itself, at the head of each epoch
        data = torch.randn(SAMPLES, 6), torch.arange(SAMPLES) % 3
        batches: Any = partial(in_drawn_order, *data)
    elif feed == "batches":
        data = torch.randn(SAMPLES, 6), torch.arange(SAMPLES) % 3
        batches = Batches(*data, batch_size=BATCH, shuffle=True, generator=generator)
    else:
        order: dict[str, Any] = {"shuffle": True, "generator": generator}
        if sampler:  # draws as it goes along, ahead of the workers
            draw = torch.utils.data.RandomSampler(NoisySamples(SAMPLES), True, SAMPLES, generator)
            order = {"sampler": draw}
        batches = DataLoader(NoisySamples(SAMPLES), BATCH, num_workers=workers, **order, **loader)
    return batches, parts


def by_hand(saves: AutoSave, batches: Any, epochs: int, parts: dict[str, Any], accumulate: int = 1) -> Any:
    """Train in the loop of a learner; the losses are in `extra`."""
    model, optimizer, scheduler = parts.values()
    for _ in saves.epochs(epochs):
        shift = torch.rand((), generator=saves.generator)
        source = batches() if callable(batches) else batches
        for number, (inputs, targets) in enumerate(saves.batches(source), start=1):
            inputs = inputs + shift
            if saves.generator is not None:  # the loader's own one is the loop's, too
                inputs = inputs + 0.1 * torch.randn(inputs.shape, generator=saves.generator)
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            saves.extra["losses"].append(loss.item())
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                saves.step()
        optimizer.zero_grad()
        scheduler.step()
    return saves.extra["losses"]


def digest(value: Any) -> str:
    """Digest the types, values and tensor bits of a nest of containers."""
    whole = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous()
            add([str(flat.dtype), list(flat.shape), flat.view(-1).view(torch.uint8).numpy().tobytes()])
        elif isinstance(value, dict):
            add([[key, item] for key, item in value.items()])
        elif isinstance(value, list | tuple):
            whole.update(f"{type(value).__name__} {len(value)}".encode())
            for item in value:
                add(item)
        else:
            text = value if isinstance(value, bytes) else repr(value).encode()
            whole.update(f"{type(value).__name__} {len(text)} ".encode() + text)

    add(value)
    return whole.hexdigest()


def run(
    folder: str | Path,
    *,
    how: str = "hand",
    epochs: int = 3,
    every_steps: int = 2,
    keep: int = 3,
    accumulate: int = 1,
    amp: str | None = None,
    scheduled_by: str = "epoch",
    share_generator: bool = False,
    hook: Any = None,
    **options: Any,
) -> str:
    """Make everything anew, train with AutoSave, and return the digest; `hook` runs after each step."""
    batches, parts = make_run(**options)
    if hook is not None:
        parts["optimizer"].register_step_post_hook(lambda *_: hook())
    extra = {"losses": []} if how == "hand" else {}
    generator = batches.generator if share_generator else None
    saves = AutoSave(
        folder,
        **parts,
        generator=generator,
        extra=extra,
        every_steps=every_steps,
        keep=keep,
    )
    with saves:
        if how == "hand":
            history = by_hand(saves, batches, epochs, parts, accumulate)
        else:
            held_out = Batches(torch.ones(5, 6), torch.arange(5) % 3, batch_size=4)
            model, optimizer, schedule = parts.values()
            schedules: dict[str, Any] = {"epoch": {"scheduler": schedule}, "step": {}}
            options = {"autosave": saves, "validation": held_out, **schedules[scheduled_by]}
            if amp or accumulate > 1 or scheduled_by == "step":
                each_step = schedule if scheduled_by == "step" else None
                options["step"] = Step(optimizer, amp=amp, accumulate=accumulate, scheduler=each_step)
            found = fit(model, batches, loss_fn, optimizer, "cpu", epochs, **options)
            history = {name: values for name, values in vars(found).items() if name != "seconds"}
    drawn = [torch.rand(3), np.random.random(3).tolist(), random.random()]
    return digest([[part.state_dict() for part in parts.values()], history, drawn])
