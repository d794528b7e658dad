"""Lesson 6: a run that is stopped, and goes on with what had been saved.

Which numbers it then goes through is not worked out: the code that the part shows runs, for each choice.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from . import table

PARTS = "optimizer", "scheduler", "epoch", "random"  # to be saved or not; the weights always are
STOPS = 2, 5, 8  # after so many epochs
SHOWN = 2  # epochs after a stop
CODE = """\
checkpoint = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "scheduler": scheduler.state_dict(),
    "epoch": epoch + 1,
    "random": torch.get_rng_state(),
    "gpu_random": torch.cuda.get_rng_state_all(),
}
torch.save(checkpoint, path)

# tomorrow
model, optimizer, scheduler = make_run()
checkpoint = torch.load(path, map_location="cpu", weights_only=True)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
scheduler.load_state_dict(checkpoint["scheduler"])
torch.set_rng_state(checkpoint["random"])
torch.cuda.set_rng_state_all(checkpoint["gpu_random"])
first = checkpoint.get("epoch", 0)
for epoch in range(first, 10):
    train(model, optimizer, scheduler, epoch)
"""
PART = re.compile(r'(\w+)"[]:]')
LINES = [
    (line, "".join(PART.findall(line)).removeprefix("gpu_")) for line in CODE.split("\n")
]  # of which part


def play(names: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Train the lesson's run to its end, and from each stop with each choice of parts."""
    batches = []
    for epoch in range(len(names["expected"])):
        names["order"].manual_seed(epoch)
        batches.append([[each.to(names["device"]) for each in batch] for batch in names["loader"]])

    def train(model: Any, optimizer: Any, scheduler: Any, epoch: int) -> float:
        """Train as the lesson does, whose loader has the same batches of an epoch each time."""
        losses = [names["train_step"](model, optimizer, *batch) for batch in batches[epoch]]
        scheduler.step()
        return float(sum(losses)) / len(losses)

    def go_on(choice: int, **now: Any) -> list[float]:
        """Save, load and train by the code that is shown; bit n of a choice is for part n."""
        saved = [part for at, part in enumerate(PARTS) if choice >> at & 1]
        lines = [line for line, part in LINES if part not in PARTS or part in saved]
        exec("\n".join(lines).partition("for ")[0], run := {**names, **now})
        again = run["model"], run["optimizer"], run["scheduler"]
        return [train(*again, run["first"] + at) for at in range(SHOWN)]

    whole: list[float] = []
    after: dict[int, list[list[float]]] = {}
    with torch.random.fork_rng(), TemporaryDirectory() as folder:
        model, optimizer, scheduler = names["make_run"]()
        for epoch in range(len(batches)):
            whole.append(train(model, optimizer, scheduler, epoch))
            if epoch + 1 in STOPS:
                now = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": epoch}
                after[epoch + 1] = []
                for choice in range(2 ** len(PARTS)):
                    with torch.random.fork_rng():
                        after[epoch + 1].append(go_on(choice, path=Path(folder, "run.pt"), **now))
    data = {"whole": whole, "after": after, "parts": PARTS, "lines": LINES}
    return data, still(whole[STOPS[-1] :], after[STOPS[-1]])


def still(whole: list[float], after: list[list[float]]) -> str:
    """Say how the last stop goes on with all parts, without each one, and without any."""
    everything = len(after) - 1
    rows = {"everything": everything}
    rows |= {f"all but <code>{part}</code>": everything - 2**at for at, part in enumerate(PARTS)}
    rows["the weights alone"] = 0
    head = [f"Saved after epoch {STOPS[-1]}", *(f"Epoch {STOPS[-1] + 1 + at}" for at in range(len(whole)))]
    lines = [("without a stop", whole), *((name, after[at]) for name, at in rows.items())]
    body = ([name, *(f"{loss:.4f}" for loss in losses)] for name, losses in lines)
    return f"<p>The loss after a stop:</p>{table(head, body)}"
