"""The programs that the tests of this folder kill, interrupt and feed; each runs in a process of its own."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import sys
import time
import warnings
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import torch
from autosave_run import NoisySamples, digest, noisy_parts
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from gpulesson import practice_gpu
from gpulesson.checkpoint import AutoSave, CheckpointError, latest, load_checkpoint, resume, save_checkpoint

EPOCHS = 4


def learn(parts, inputs, targets):
    loss = nn.functional.cross_entropy(parts["model"](inputs), targets)
    parts["optimizer"].zero_grad()
    loss.backward()
    parts["optimizer"].step()


def train_each_epoch(folder, workers):
    """Save after each epoch, and go on with the latest: written by hand, as lesson 6 does it."""
    parts = noisy_parts()
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(NoisySamples(), 8, shuffle=True, generator=generator, num_workers=workers)
    print("begun", flush=True)
    path = latest(folder)
    first = 0 if path is None else resume(load_checkpoint(path), **parts, generator=generator)
    for epoch in range(first, EPOCHS):
        for inputs, targets in loader:
            learn(parts, inputs, targets)
        parts["scheduler"].step()
        save_checkpoint(
            Path(folder, f"{epoch + 1}.safetensors"), epoch=epoch + 1, **parts, generator=generator
        )
    tell_state(parts)


def train_each_step(folder, workers):
    """Save after each step, and go on within the epoch."""
    parts = noisy_parts()
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


# -- operations that meet a fault at one of their system calls


def watched(operation, how, *arguments):
    """Prepare an operation, wait until strace is there, do it, and tell how it went and what it left.

    `how`: what signals do, ``"exit"`` for a handler of SIGTERM that calls ``sys.exit``.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    do, check = OPERATIONS[operation](*arguments)
    if how == "exit":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            do()
        except BaseException as raised:
            error = raised
    os.access("/the end of what is watched", os.F_OK)
    print("done", flush=True)
    signal.sigwait({signal.SIGUSR1})  # strace has let go
    told = {
        "error": [each.__name__ for each in type(error).__mro__] if error else [],
        "message": str(error or ""),
    }
    wrong = check(error, [str(warning.message) for warning in caught])
    print("told", json.dumps(told | {"wrong": wrong}), flush=True)


def saving(folder):
    """Save over an older checkpoint."""
    path = Path(folder, "last.safetensors")
    parts = noisy_parts()
    save_checkpoint(path, epoch=1, **parts)
    learn(parts, torch.ones(8, 6).cumsum(0).sin(), torch.arange(8) % 3)

    def check(error, warned):
        return check_saved(folder, old_is_wrong=error is None)

    return lambda: save_checkpoint(path, epoch=2, **parts), check


def check_saved(folder, old_is_wrong=False):
    """Say what is wrong with the checkpoint that `saving` saved or failed to save, and with the next save."""
    path = Path(folder, "last.safetensors")
    parts = noisy_parts()
    old = digest(parts["model"].state_dict())
    learn(parts, torch.ones(8, 6).cumsum(0).sin(), torch.arange(8) % 3)
    new = digest(parts["model"].state_dict())
    found = load_checkpoint(path)
    if (found.epoch, digest(dict(found.model))) not in [(1, old), (2, new)]:
        return "neither the old nor the new checkpoint is there"
    if old_is_wrong and found.epoch != 2:
        return "it says nothing, and the old checkpoint is there"
    save_checkpoint(path, epoch=3, **parts)
    return left(folder, "last.safetensors") or (
        "" if load_checkpoint(path).epoch == 3 else "the next save is not there"
    )


def left(folder, *expected):
    """Name the files that should not be in a folder."""
    names = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
    return f"left: {names}" if names != sorted(expected) else ""


def searching(folder):
    """Find the latest of three checkpoints."""
    for epoch in (1, 2, 3):
        save_checkpoint(Path(folder, f"{epoch}.safetensors"), epoch=epoch, **noisy_parts())
    found = []
    latest(folder)

    def check(error, warned):
        allowed = [Path(folder, "3.safetensors")] + [
            Path(folder, "2.safetensors") for text in warned if "3.safetensors" in text
        ]
        if error is None and found[0] not in allowed:
            return f"it says nothing, and found {found}"
        return "" if latest(folder) == Path(folder, "3.safetensors") else "the next search finds another"

    return lambda: found.append(latest(folder)), check


def resuming(folder):
    """Load a checkpoint into a run that has begun otherwise."""
    path = Path(folder, "last.safetensors")
    saved = noisy_parts(seed=1)
    learn(saved, torch.ones(8, 6).cumsum(0).sin(), torch.arange(8) % 3)
    save_checkpoint(path, epoch=1, **saved)
    given = noisy_parts(seed=2)
    learn(given, torch.ones(8, 6).cumsum(0).sin(), torch.arange(8) % 3)

    def state():
        return digest([{name: part.state_dict() for name, part in given.items()}, torch.get_rng_state()])

    before = state()
    resume(load_checkpoint(path), **given)
    after = state()
    given = noisy_parts(seed=2)
    learn(given, torch.ones(8, 6).cumsum(0).sin(), torch.arange(8) % 3)
    assert before == state() != after

    def check(error, warned):
        if state() != (after if error is None else before):
            return "the run is neither what it was nor what was saved"
        resume(load_checkpoint(path), **given)
        return left(folder, "last.safetensors") or ("" if state() == after else "the next resume differs")

    return lambda: resume(load_checkpoint(path), **given), check


OPERATIONS = {"save": saving, "latest": searching, "resume": resuming}


def after_the_end(folder):
    """Say whether a save that a signal has ended left all well, in another process."""
    print(check_saved(folder) or "well")


def write_for_ever(folder, epoch):
    """Save over the same path again and again, until SIGTERM."""
    parts, end = noisy_parts(seed=epoch), []
    signal.signal(signal.SIGTERM, lambda *_: end.append(1))
    print("begun", flush=True)
    while not end:
        save_checkpoint(Path(folder, "a.safetensors"), epoch=epoch, **parts)


# -- hostile files


def read_checkpoint(place):
    """Read a file with all that reads checkpoints, and tell what it took."""
    path = Path(os.fsdecode(bytes.fromhex(place)))
    given = noisy_parts()

    def read():
        try:
            resume(load_checkpoint(path), **given)
        finally:
            latest(path.parent, pattern="*")  # it reads the digest alone

    tell_cost(read, CheckpointError)


def tell_cost(read, expected):
    """Do it, and print whether it was refused, and the MB of memory and the seconds of the processor."""
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))  # this machine is to survive it
    signal.alarm(110)
    memory, seconds = peak_memory(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            read()
            how = "loaded"
        except expected as error:
            texts = [str(error), *(str(warning.message) for warning in caught)]
            steering = [text for text in texts if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)]
            how = f"steers the terminal: {steering!a}" if steering else "refused"
        except BaseException as error:
            how = f"{type(error).__name__}: {ascii(str(error))[:200]}"
    seconds = time.process_time() - seconds
    print(f"told {how} {(peak_memory() - memory) / 1024:.0f} {seconds:.2f}", flush=True)


def peak_memory():
    """Return the most kB that this process had in memory so far."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1])


# -- other devices, other versions

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5, centered=True),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
}
SCHEDULERS = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 6),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
}


def some_runs(device, seed):
    """Yield small runs with each optimizer and scheduler, three steps old, by name."""
    for optimizer_name, scheduler_name in product(OPTIMIZERS, SCHEDULERS):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        optimizer = OPTIMIZERS[optimizer_name](model.parameters())
        parts = {"model": model, "optimizer": optimizer, "scheduler": SCHEDULERS[scheduler_name](optimizer)}
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            learn(parts, torch.randn(8, 6, generator=generator).to(device), torch.arange(8).to(device) % 3)
            parts["scheduler"].step(*[1.0] if scheduler_name == "ReduceLROnPlateau" else [])
        yield f"{optimizer_name} {scheduler_name}", {**parts, "generator": generator}


def state_digest(parts):
    states = {name: part.state_dict() for name, part in parts.items() if name != "generator"}
    return digest([states, parts["generator"].get_state()])


def save_some(folder, device):
    """Save some runs, and the digests of their states."""
    with on(device):
        digests = {}
        for name, parts in some_runs(device, seed=0):
            save_checkpoint(Path(folder, f"{name}.safetensors"), epoch=3, **parts)
            digests[name] = state_digest(parts)
    Path(folder, "digests.json").write_text(json.dumps(digests))


def resume_some(folder, device):
    """Resume each, save it again, and print what differs, a line a run."""
    digests = json.loads(Path(folder, "digests.json").read_text())
    with on(device):
        for name, parts in some_runs(device, seed=1):
            assert state_digest(parts) != digests[name]
            resume(load_checkpoint(Path(folder, f"{name}.safetensors")), **parts)
            equal = state_digest(parts) == digests[name]
            again = save_checkpoint(Path(folder, f"{name} again.safetensors"), epoch=3, **parts)
            first, second = load_checkpoint(Path(folder, f"{name}.safetensors")), load_checkpoint(again)
            for key in ("model", "optimizer", "scheduler", "generator", "epoch", "outline"):
                equal &= digest(getattr(first, key)) == digest(getattr(second, key))
            print(f"told {name}: {'equal' if equal else 'differs'}", flush=True)


def on(device):
    """The practice GPU where ``cuda`` is none of this machine's."""
    return practice_gpu(force=True) if device == "cuda" and not torch.cuda.is_available() else nullcontext()
