"""The programs that the tests of this folder kill, interrupt and feed; each runs in a process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from gpulesson.autosave import AutoSave
from gpulesson.checkpoint import latest, load_checkpoint, resume, save_checkpoint

EPOCHS = 4


class NoisySamples(Dataset):
    """40 samples whose inputs torch, numpy and Python disturb with random numbers at every access."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = torch.randn(6) * 0.1 + np.random.normal() * 0.01 + random.gauss(0, 0.01)
        return torch.arange(6.0).add(index).sin() + noise, index % 3


def parts_of_a_run(seed=0, width=16):
    """Build dropout, batch norm, Adam and a scheduler."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = nn.Sequential(
        nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.4), nn.Linear(width, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def learn(parts, inputs, targets):
    loss = nn.functional.cross_entropy(parts["model"](inputs), targets)
    parts["optimizer"].zero_grad()
    loss.backward()
    parts["optimizer"].step()


def train_each_epoch(folder, workers):
    """Save after each epoch, and go on with the latest: written by hand, as lesson 6 does it."""
    parts = parts_of_a_run()
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(NoisySamples(), 8, shuffle=True, generator=generator, num_workers=workers)
    print("begun", flush=True)
    path = latest(folder)
    first = 0 if path is None else resume(load_checkpoint(path), **parts, generator=generator)
    for epoch in range(first, EPOCHS):
        for inputs, targets in loader:
            learn(parts, inputs, targets)
        parts["scheduler"].step()
        save_checkpoint(Path(folder, f"{epoch + 1}.pt"), epoch=epoch + 1, **parts, generator=generator)
    tell_state(parts)


def train_each_step(folder, workers):
    """Save after each step, and go on within the epoch."""
    parts = parts_of_a_run()
    loader = DataLoader(NoisySamples(), 8, shuffle=True, num_workers=workers)
    print("begun", flush=True)
    with AutoSave(folder, **parts, every_steps=1) as saves:
        for _ in saves.epochs(EPOCHS):
            for inputs, targets in saves.batches(loader):
                learn(parts, inputs, targets)
                saves.step()
            parts["scheduler"].step()
    tell_state(parts)


def tell_state(parts):
    """Print a digest of all that a run has at its end, the next random numbers included."""
    end = {name: part.state_dict() for name, part in parts.items()}
    drawn = [torch.rand(2), random.random(), np.random.random()]
    print("state", digest([end, drawn]), flush=True)


def digest(value):
    """Digest the types, values and tensor bits of a nest of containers."""
    whole = hashlib.sha256()

    def add(value):
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
