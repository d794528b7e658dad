"""Genuine files of each kind, and what reads and then uses one: each is tried by many changed files."""

from __future__ import annotations

import math
import random
import re
import resource
import shutil
import signal
import sys
import time
import warnings
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optimizers import INPUTS, RUNS, TARGETS, learn, loss_fn, make

from gpulesson.checkpoint import AutoSave, CheckpointError, load_checkpoint, resume, save_checkpoint
from gpulesson.data import Batches
from gpulesson.preflight import NonFiniteLossError
from gpulesson.step import Step
from gpulesson.training import fit

SECONDS = 5.0
"""Of the processor's time for one file: beyond it is a hang."""

EXTRA = {
    "note": [1, 2.5, "text", None, True, math.inf, (1, 2), {3, 4}, torch.Size([2])],
    "table": {1: 2, (3, "x"): 4, "$": 5},
    "more": [deque([1], 3), Counter("aab"), OrderedDict(a=1), torch.float16, torch.device("cpu")],
}


def draw(generator: torch.Generator | None = None) -> list[Any]:
    """Draw more numbers from each generator than its state holds."""
    found: list[Any] = [
        torch.rand(700),
        torch.randn(9),
        torch.randperm(9),
        random.random(),
        random.gauss(0, 1),
    ]
    found += [np.random.normal(), np.random.standard_normal(3), np.random.random(700), np.random.randint(9)]
    found += [random.getrandbits(700 * 32), random.gauss(0, 1), np.random.bytes(3), np.random.permutation(4)]
    if generator is not None:
        found += [torch.rand(700, generator=generator), torch.randn(3, generator=generator)]
    return found


def batches() -> Batches:
    return Batches(INPUTS, TARGETS, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(2))


# -- the kinds of files


def save_a_checkpoint(folder: Path, run: str) -> Path:
    parts = make(run)
    for _ in range(3):
        learn(parts)
    draw(parts["generator"])
    return save_checkpoint(folder / "a.safetensors", epoch=1, extra=EXTRA, **parts)


def use_a_checkpoint(path: Path, run: str) -> Any:
    parts = make(run)
    yield parts
    resume(load_checkpoint(path), **parts)
    yield
    for _ in range(3):
        learn(parts)
        draw(parts["generator"])


def autosaved(folder: Path, run: str, epochs: int, stop: int | None = None) -> Any:
    """Go on with a run of AutoSave, written by hand; `stop` after so many steps."""
    parts = make(run)
    draw(parts["generator"])
    yield parts
    saves = AutoSave(folder, **parts, extra={"losses": [], "note": EXTRA}, every_steps=3, keep=1)
    with saves:
        taken = 0
        for _ in saves.epochs(epochs):
            for inputs, targets in saves.batches(batches()):
                if not taken:
                    yield
                learn(parts, inputs, targets)
                draw(parts["generator"])
                taken += 1
                saves.step()
                if taken == stop:
                    return


def fitted(folder: Path, run: str, epochs: int) -> Any:
    parts = make(run) | {"generator": None, "scheduler": None}
    yield parts
    model, optimizer = parts["model"], parts["optimizer"]
    with AutoSave(folder, model=model, optimizer=optimizer, every_steps=3, keep=1) as saves:
        step = Step(optimizer, amp="float16")
        fit(model, batches(), loss_fn, optimizer, "cpu", epochs, autosave=saves, step=step)
    yield
    draw()


def save_automatically(folder: Path, run: str) -> Path:
    for _ in autosaved(folder, run, 1, stop=3):
        pass
    return only(folder)


def save_a_fit(folder: Path, run: str) -> Path:
    for _ in fitted(folder, run, 1):
        pass
    return only(folder)


def use_autosaved(path: Path, run: str) -> Any:
    return autosaved(path.parent, run, 2)


def use_a_fit(path: Path, run: str) -> Any:
    return fitted(path.parent, run, 2)


def only(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


KINDS: dict[str, tuple[Any, Any, list[str]]] = {
    "checkpoint": (save_a_checkpoint, use_a_checkpoint, list(RUNS)),
    "AutoSave": (save_automatically, use_autosaved, ["Adam and StepLR", "SGD and ReduceLROnPlateau"]),
    "fit": (save_a_fit, use_a_fit, ["SGD and ReduceLROnPlateau"]),
}
"""How a genuine one is saved, what uses it, and for which runs."""


# -- many of them, in one process


def use_many(folder: str) -> None:
    """Use the files of a folder, and tell of each what came of it; those that were told of are removed."""
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))  # this machine is to survive it
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    sys.addaudithook(watch)
    for case in sorted(Path(folder).iterdir(), key=lambda case: int(case.name)):
        print(f"begins {case.name}", flush=True)
        about, place = (case / "about").read_text().split("\n")
        kind, run, _ = about.split(", ", 2)
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told = use(kind, run, case / place)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(f"told {case.name} {time.process_time() - begin:.2f} {told}", flush=True)
        shutil.rmtree(case)


ran: list[str] = []


def watch(event: str, arguments: Any) -> None:
    if event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"):
        ran.append(f"{event} {arguments!r:.200}")


def use(kind: str, run: str, path: Path) -> str:
    """Read a file and go on with it; say what is wrong with what came of it."""
    using, before, parts, loaded = KINDS[kind][1](path, run), "", None, False
    ran.clear()
    try:
        parts = next(using)
        before = state(parts)
        for _ in using:
            loaded = True
        how = "used"
    except CheckpointError as error:
        text = str(error)
        how = "refused: " + ascii(text)
        if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text):
            how = "WRONG it steers the terminal: " + ascii(text)
        elif not loaded and "was not written" not in text and parts and state(parts) != before:
            how = "WRONG refused after something changed: " + ascii(text)
        elif found := re.search(r"\b(?!FileNotFound|OS)\w+Error: ", text):
            how = f"WRONG an error that is not ours, {found[0]}" + ascii(text)
    except NonFiniteLossError:  # weights may be bad
        how = "used"
    except Exception as error:
        how = f"WRONG {'in use' if loaded else 'in reading'}, {type(error).__name__}: " + ascii(str(error))
    return f"WRONG it ran {ran}" if ran else how


def state(parts: dict[str, Any]) -> str:
    """Describe all that a refused file must leave as it was."""
    states = [
        part.get_state() if name == "generator" else part.state_dict()
        for name, part in parts.items()
        if part is not None
    ]
    numbers = np.random.get_state()
    return repr(
        [states, torch.get_rng_state().sum(), random.getstate()[1][-1], numbers[1].sum(), numbers[2:]]
    )
