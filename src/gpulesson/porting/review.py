"""The command ``python -m gpulesson review``: faults of a script that uses a GPU, as counted in a run."""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson.porting.child import NO_NETWORK
from gpulesson.porting.facts import DEVICE_LINE, Failure, Record
from gpulesson.practice import command as practice_command

if TYPE_CHECKING:
    from gpulesson.porting.observe import Evidence, Place

_USAGE = "python -m gpulesson review [options] script [argument ...]"
GROUPS = (
    "Fails elsewhere",
    "Silent: no error, but a wrong or a worse result",
    "Costs: slower than it has to be, or more memory",
)
ELSEWHERE, SILENT, COSTS = range(3)
_NO_GPU = ("not compiled with CUDA", "No CUDA GPUs", "no NVIDIA driver", "deserialize object on a CUDA device")
_LEAST = 64 * 1024
"""Bytes of a batch from which on its copies are worth a word."""


class Finding(NamedTuple):
    """A fault: where, as counted in the run, what to write instead, the lesson."""

    group: int
    places: tuple[Place, ...]
    text: str
    instead: str
    lesson: str


def add(commands: Any) -> None:
    """Add the command's options to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "review",
        help="find what is wrong or slow in a training script that uses a GPU",
        usage=_USAGE,
        description="Run a training script on the practice GPU and without a GPU, and say what is wrong or "
        "slow, as it was counted in the run. Changes nothing. All that stands behind the script is the script's.",
        allow_abbrev=False,
    )
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each run (default: 120)")
    parser.set_defaults(refuse=parser.error)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line after ``review`` into the command's options and the script."""
    return practice_command.split(words, ("--limit",))


def run(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Review the script and print what was found; 1 if it does not run."""
    from gpulesson.porting.run import Runs

    if not program or not program[0].endswith(".py"):
        options.refuse("expected a script, a file that ends in .py, behind the options")
    if not options.limit > 0:
        options.refuse("--limit: expected a number of seconds, such as 120")
    script = Path(program[0])
    try:
        ast.parse(script.read_bytes(), program[0])
    except (OSError, SyntaxError, ValueError) as error:
        print(f"{program[0]} cannot run: {error}", file=sys.stderr)
        return 1
    runs = Runs(script, tuple(program[1:]), options.limit)
    gpu = runs.run({}, gpu=True, review="faults")
    if gpu.failure is not None:
        runs.short = False  # it may need its loops in full
        gpu = runs.run({}, gpu=True, review="faults")
    if gpu.failure is not None or gpu.evidence is None:
        print("\n".join(_failed(script.name, gpu)), file=sys.stderr)
        return 1
    if not gpu.evidence.on_gpu:
        print(f"{script.name} does not use the GPU, though there was one. This command moves it there:")
        print(f"    python -m gpulesson port {' '.join(program)}")
        return 0
    cpu = runs.run({}, gpu=False)
    needs = runs.run({}, gpu=True, review="memory").evidence
    sources = {file: runs.read(file) for file in gpu.lines}
    print("\n".join(report(script.name, gpu, cpu, needs or "", sources)))
    return 0


def _failed(name: str, record: Record) -> Iterator[str]:
    failure = record.failure
    if failure is None:
        yield f"{name} did not come to its end: {record.stopped or 'no answer'}. More time: --limit 600"
        return
    line = failure.frames[-1].line if failure.frames else 0
    if failure.kind == "NoInput":
        yield f"{name} waits for input() in line {line}. Give the value as an argument of the script."
    elif NO_NETWORK in failure.text:
        yield f"{name} wants to download something in line {line}. There is no network here: run it once before."
    else:
        yield f"{name} fails on the practice GPU, in line {line}. Fix that first:"
        yield from failure.text.splitlines()[-8:]


# -- words


def report(name: str, gpu: Record, cpu: Record, needs: str, sources: dict[str, bytes]) -> Iterator[str]:
    """Yield the lines that are printed: what was looked at, the findings by group, the memory of a step."""
    seen = gpu.evidence
    steps = sum(map(len, seen.steps.values()))
    looked = f"{steps} training steps and {sum(map(len, gpu.lines.values()))} lines"
    cut = " Loops were cut short." if gpu.shortened else ""
    end = f" It did not come to its end: {gpu.stopped}." if gpu.stopped else ""
    yield f"Review of {name}: {looked} ran on the practice GPU.{cut}{end}"
    found = list(findings(gpu, cpu, sources))
    for group, title in enumerate(GROUPS):
        chosen = sorted((each for each in found if each.group == group), key=lambda each: each.places)
        if chosen:
            yield f"\n{title}"
        for each in chosen:
            yield ""
            for file, line in each.places:
                text = sources.get(file, b"").decode("utf-8", "replace").splitlines()[line - 1 : line]
                yield f"  {file}, line {line}:  {''.join(text).strip()}"
            yield from textwrap.wrap(each.text, 90, initial_indent="      ", subsequent_indent="      ")
            yield f"      Write:  {each.instead}"
            yield f"      Lesson {each.lesson}"
    if not found:
        yield "Nothing was found."
    if needs:
        yield "\nNeeds"
        yield from textwrap.wrap(needs, 90, initial_indent="  ", subsequent_indent="  ")


def findings(gpu: Record, cpu: Record, sources: dict[str, bytes]) -> Iterator[Finding]:
    """Yield what the evidence of the runs carries."""
    trees = {file: ast.parse(text) for file, text in sources.items()}
    yield from _without_a_gpu(gpu, cpu.failure)
    for rule in (_modes, _unused, _kept, _means, _order, _idle, _plain, _half, _waits, _feeds, _copies):
        yield from rule(gpu.evidence, trees)


def _without_a_gpu(gpu: Record, failure: Failure | None) -> Iterator[Finding]:
    if failure and failure.frames and any(each in failure.message for each in _NO_GPU):
        spot = failure.frames[-1]
        yield Finding(
            ELSEWHERE,
            ((spot.file, spot.line),),
            f"On a computer without a GPU this line fails: {failure.message.splitlines()[0][:90]}",
            f"{DEVICE_LINE}  # once, then .to(device) in place of .cuda()",
            "1, Is there a GPU?",
        )
    for spot in dict.fromkeys(gpu.loads):
        yield Finding(
            ELSEWHERE,
            ((spot.file, spot.line),),
            "The file was saved from a GPU, so its tensors go to that GPU again. Where there is none, "
            "loading fails.",
            "torch.load(..., map_location=device)",
            "6, Save, load, resume",
        )


def _modes(seen: Evidence, _: Any) -> Iterator[Finding]:
    for place, calls in seen.calls.items():
        with_noise = calls.random and seen.models > 1  # a generator's pictures, made while it is trained
        in_steps = calls.fed and _regular(calls.ticks, seen)  # labels that a model makes for its own training
        unused = calls.tracked if calls.tracked >= 2 and not calls.used else 0
        quiet = calls.quiet if not calls.calm and not with_noise and not in_steps else 0
        if calls.layers and (quiet or (unused and not calls.used)):
            yield Finding(
                SILENT,
                (place,),
                f"{calls.model} was called here {_times(quiet or unused)} without training, but was in training "
                f"mode: {' and '.join(sorted(calls.layers))} still changed its output.",
                "model.eval()  # before; model.train() before the next epoch",
                "7, Common mistakes: a forgotten eval",
            )


def _unused(seen: Evidence, _: Any) -> Iterator[Finding]:
    for place, calls in seen.calls.items():
        if calls.tracked >= 2 and not calls.used:
            yield Finding(
                SILENT,
                (place,),
                f"PyTorch kept all that a backward pass needs, {_times(calls.tracked)}, and no backward pass "
                "came here. That costs memory and time.",
                "with torch.no_grad():  # around this line",
                "10, Where did my memory go? Evaluate without a history",
            )


def _kept(seen: Evidence, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    for place, kept in seen.kept.items():
        file, line = kept.place
        for node in ast.walk(trees[file]) if not line else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "append" and ast.unparse(node.func.value).startswith(kept.name):
                    line = node.lineno
        yield Finding(
            SILENT,
            ((file, line) if line else place,),
            f"{kept.name} holds the history of earlier steps: of {kept.number} results of line {place[1]}, "
            f"{kept.alive} still had theirs two steps after their backward pass. Memory grows with each step.",
            "loss.item(), or loss.detach(), where the value is kept",
            "7, Common mistakes: kept losses fill the memory",
        )


def _means(seen: Evidence, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    """Find sums of batch means that are divided by the number of batches, although the last batch is smaller."""
    starts = {place: feed for feed in seen.feeds for place in feed.starts}
    for file, tree in trees.items():
        scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Module)]
        for scope, loop in ((scope, node) for scope in scopes for node in ast.walk(scope)):
            feed = starts.get((file, loop.lineno)) if isinstance(loop, ast.For) else None
            if feed is None or feed.drop_last or feed.size < feed.batch or not feed.size % feed.batch:
                continue
            means = {
                ast.unparse(node.targets[0])
                for node in ast.walk(loop)
                if isinstance(node, ast.Assign)
                and any((file, line) in seen.means for line in range(node.lineno, node.end_lineno + 1))
            }
            sums = {
                ast.unparse(node.target): node.lineno
                for node in ast.walk(loop)
                if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
                if _bare(node.value) in means
            }
            for node in ast.walk(scope):
                if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
                    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
                    of = ast.unparse(right)
                    if _bare(left) in sums and of.startswith("len(") and of[4:-1] in ast.unparse(loop.iter):
                        yield Finding(
                            SILENT,
                            ((file, sums.pop(_bare(left))), (file, node.lineno)),
                            f"The last batch has {feed.size % feed.batch} samples, the others {feed.batch}. Its mean "
                            "counts as much as theirs, so this is not the mean of all samples.",
                            f"+= loss.item() * len(batch), and / {of[:-1]}.dataset)",
                            "5, Fashion-MNIST end to end: weight each loss by its pictures",
                        )


def _bare(node: ast.expr) -> str:
    """Return what a value is read from: ``loss`` of ``loss.item()``."""
    while True:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "float" and node.args:
            node = node.args[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return ast.unparse(node)


def _order(seen: Evidence, _: Any) -> Iterator[Finding]:
    for feed in seen.feeds:
        learned = len(feed.trained) >= 3 and len(feed.trained) >= 0.8 * feed.draws
        if feed.sequential and learned and feed.labels == feed.draws and feed.size > feed.batch:
            if len(feed.starts) > 1:
                yield Finding(
                    SILENT,
                    (feed.place,),
                    f"The loader has no shuffling, and {len(feed.trained)} of its batches were trained on. Each "
                    "epoch has the same batches in the same order, which learns worse.",
                    "DataLoader(..., shuffle=True)",
                    "4, The training loop: shuffle, and let a loader make the batches",
                )


def _idle(seen: Evidence, _: Any) -> Iterator[Finding]:
    for each in seen.optimizers:
        if each.steps >= 3 and each.without == each.steps:
            yield Finding(
                SILENT,
                (each.place,),
                f"{each.name} took {each.steps} steps here, and its parameters never had a gradient: they stay "
                "as they are. Is it for another model, or is zero_grad() between backward() and step()?",
                f"optimizer = torch.optim.{each.name}(model.parameters(), ...)  # of the model that is trained",
                "4, The training loop: follow one step",
            )


def _plain(seen: Evidence, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    for file, owner, name, uses in seen.plain:
        for part in ast.walk(trees[file]):
            if isinstance(part, ast.ClassDef) and part.name == owner:
                inits = [each for each in part.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
                for node in (node for init in inits for node in ast.walk(init)):
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
                        yield Finding(
                            SILENT,
                            ((file, node.lineno),),
                            f"forward() used self.{name} {_times(uses)}, and it is a plain attribute: "
                            "model.to(device) does not move it, and state_dict() does not save it.",
                            f'self.register_buffer("{name}", {ast.unparse(node.value)})',
                            "7, Common mistakes",
                        )


def _half(seen: Evidence, _: Any) -> Iterator[Finding]:
    places = [each.place for each in seen.optimizers if "torch.float16" in each.dtypes]
    place = seen.half or next(iter(places), None)
    if place and not seen.scaled:
        yield Finding(
            SILENT,
            (place,),
            "It trains in float16 without a GradScaler. Small gradients become zero there, and nothing says so.",
            'with torch.autocast("cuda", dtype=torch.bfloat16):  # or scaler = torch.amp.GradScaler("cuda")',
            "12, The speed ladder: train in mixed precision",
        )
    for each in seen.optimizers:
        if "torch.float64" in each.dtypes:
            yield Finding(
                COSTS,
                (each.place,),
                f"In {each.steps} steps this trained parameters in float64. They take twice the memory of "
                "float32, and most GPUs are many times slower with them.",
                "model.float()  # and the data, unless you need sixteen digits",
                "7, Common mistakes: dtypes",
            )


def _waits(seen: Evidence, _: Any) -> Iterator[Finding]:
    waits: dict[tuple[Place, str], tuple[int, int]] = {}
    for key, ticks in seen.reads.items():
        if regular := _regular(ticks, seen):
            waits[key] = regular
    if waits:
        calls = dict.fromkeys(call for _, call in waits)
        hits, steps = max(waits.values())
        yield Finding(
            COSTS,
            tuple(sorted({place for place, _ in waits})),
            f"Python waits for the GPU here, by {' and '.join(calls)}, in {hits} of {steps} steps. "
            "Meanwhile it cannot give the GPU new work.",
            "total += loss.detach()  # and total.item() once, after the loop or every 100 steps",
            "8, Was it faster? See which lines wait for the GPU",
        )


def _feeds(seen: Evidence, _: Any) -> Iterator[Finding]:
    for number, feed in enumerate(seen.feeds):
        copies = [each for (_, key), each in seen.copies.items() if key == number]
        nbytes = sum(each.nbytes for each in copies) // max(feed.draws, 1)
        learned = len(feed.trained) >= 3 and len(feed.trained) >= 0.8 * feed.draws
        regular = any(len(each.ticks) >= 0.8 * feed.draws for each in copies)
        if learned and regular and nbytes >= _LEAST and not feed.pinned:
            yield Finding(
                COSTS,
                (feed.place,),
                f"{feed.draws} batches of {nbytes // 1024:,} KiB were copied to the GPU from ordinary memory. "
                "Python waits for such copies.",
                "DataLoader(..., pin_memory=True), and .to(device, non_blocking=True)",
                "9, Feeding the GPU: set pin_memory",
            )
        if feed.workers and not feed.persistent and len(feed.starts) > 1:
            yield Finding(
                COSTS,
                (feed.place,),
                f"Its {feed.workers} worker processes were started {_times(len(feed.starts))}, anew for each epoch.",
                "DataLoader(..., persistent_workers=True)",
                "9, Feeding the GPU: measure the loader's settings",
            )
        for (place, key), each in seen.copies.items():
            if key == number and learned and nbytes >= _LEAST and each.images and all(each.images):
                yield Finding(
                    COSTS,
                    (place,),
                    f"These images were bytes, and travel as float32: {nbytes // 1024:,} KiB a batch, where a "
                    "quarter would do.",
                    "images.to(device).float() / 255  # and PILToTensor() in place of ToTensor()",
                    "9, Feeding the GPU: keep the data as bytes",
                )


def _copies(seen: Evidence, _: Any) -> Iterator[Finding]:
    for (place, made), each in seen.copies.items():
        if isinstance(made, str) and (regular := _regular(each.ticks, seen)):
            yield Finding(
                COSTS,
                (place,),
                f"In {regular[0]} of {regular[1]} steps torch.{made} made a tensor on the CPU, which then was "
                "copied to the GPU.",
                f"torch.{made}(..., device=device)",
                "2, Tensors and devices",
            )


def _regular(ticks: Sequence[int], seen: Evidence) -> tuple[int, int] | None:
    """Return in how many steps of how many something happened; None if not in most of some line's steps."""
    for edges in seen.steps.values():
        pairs = list(zip(edges, edges[1:], strict=False))
        hits = sum(any(first < tick <= last for tick in ticks) for first, last in pairs)
        if len(pairs) >= 3 and hits >= 0.8 * len(pairs):
            return hits, len(pairs)
    return None


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
