"""The command ``python -m gpulesson review``: faults of a script that uses a GPU, as counted in a run."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson_tools.porting import command
from gpulesson_tools.porting.child import WHOLE, Loops
from gpulesson_tools.porting.facts import CHOICE, LESSONS, OPTION, Run, explained
from gpulesson_tools.programs import arguments
from gpulesson_tools.programs.arguments import Program

if TYPE_CHECKING:
    from gpulesson_tools.porting.observe import Calls, Constant, Evidence, Feed, Kept, Place, Steps
    from gpulesson_tools.porting.run import Runs

_NO_GPU = (
    "not compiled with CUDA",
    "No CUDA GPUs",
    "no NVIDIA driver",
    "deserialize object on a CUDA device",
)
_NAMED = re.compile(rb"(?m)^[^#\n]*?\bdevice *= *(?:torch\.device\()?['\"]cuda(?::\d)?['\"](?! if)")
"""A device that is chosen without asking whether it is there."""
_FEW = 4
_LEAST = 256 * 1024
"""Bytes of a batch from which on its copies are worth a word."""
_BACK = frozenset((".cpu()", ".tolist()", '.to("cpu")'))


class Kind(NamedTuple):
    """A kind of finding: under which heading it stands, what it is about, and the lesson about it."""

    heading: str
    about: str
    lesson: int


_ELSEWHERE = "Fails elsewhere"
_SILENT = "Silent: no error, but a wrong or worse result"
_COSTS = "Costs: time or memory that you can save"
TABLE = {
    "no gpu": Kind(_ELSEWHERE, "a line that fails on a computer without a GPU", 1),
    "load": Kind(_ELSEWHERE, "files from a GPU that are loaded without map_location", 6),
    "mode": Kind(_SILENT, "a model that is tested in training mode, with Dropout or BatchNorm in it", 7),
    "kept": Kind(_SILENT, "results that keep the history of earlier steps", 7),
    "means": Kind(_SILENT, "a test's mean of the means of batches, of which the last is smaller", 5),
    "order": Kind(_SILENT, "batches for training that are not shuffled", 4),
    "idle": Kind(_SILENT, "an optimizer whose parameters never have a gradient", 4),
    "plain": Kind(_SILENT, "constant tensors of a model that are plain attributes", 7),
    "half": Kind(_SILENT, "training in float16 without a GradScaler", 12),
    "unused": Kind(_COSTS, "calls of a model whose history no backward pass uses", 10),
    "thrown": Kind(_COSTS, "backward passes that go further back than the step", 7),
    "parallel": Kind(_COSTS, "DataParallel with one GPU", 14),
    "waits": Kind(_COSTS, "lines at which Python waits for the GPU in each step", 8),
    "back": Kind(_COSTS, "tensors that come back to the CPU in each step", 8),
    "pinned": Kind(_COSTS, "batches that are copied from ordinary memory", 9),
    "blocking": Kind(_COSTS, "copies from pinned memory that are waited for", 9),
    "workers": Kind(_COSTS, "worker processes that start again in each epoch", 9),
    "double": Kind(_COSTS, "parameters in float64", 7),
    "bytes": Kind(_COSTS, "images that were bytes and travel as float32", 9),
    "made": Kind(_COSTS, "tensors that are made on the CPU and copied in each step", 2),
}
"""The kinds of findings by name, in the order of the report."""


class Finding(NamedTuple):
    """A fault: its kind, a key of ``TABLE``; where it is; what to write instead; what was seen, in words."""

    kind: str
    places: list[Place]
    instead: str
    text: str


def main(words: Sequence[str], prog: str) -> int:
    """Review the script of a command line and print what was found; 1 if it does not run."""
    parser = arguments.parser(prog, "Find what is wrong or slow in a training script that uses a GPU.")
    command.add_options(parser)
    options, program = arguments.parse(parser, words)
    status = 1
    with command.refusing(), command.trial(program, options.limit, options.root) as runs:
        print("\n".join(_reviewed(runs, program)))
        status = 0
    return status


def _reviewed(runs: Runs, program: Program) -> Iterator[str]:
    """Run the script and yield the lines that are printed."""
    name = Path(runs.name).name
    command.tell("the script on the practice GPU")
    for loops in (Loops(short=True), WHOLE):  # it may need its loops in full
        gpu = runs.run({}, gpu=True, loops=loops, watch="faults")
        if gpu.failure is None and (gpu.losses or gpu.stopped):
            break
    if gpu.failure is not None:
        raise command.Refused(f"{name}: {explained(gpu.failure, 'on the practice GPU')}")
    if gpu.evidence is None:
        raise command.Refused(
            f"{name} did not come to its end: {gpu.stopped}. --limit 600 gives it more time."
        )
    if not gpu.evidence.on_gpu:
        yield f"{name} did not use the GPU. If it has an option for that, give it after the script."
        yield "If it cannot use a GPU yet, this command takes it there:"
        yield f"    python -m gpulesson port {' '.join(program.words)}"
        return
    command.tell("the script without a GPU")
    cpu = runs.run({}, gpu=False, loops=loops)
    command.tell("what a step needs")
    needs = runs.run({}, gpu=True, loops=loops, watch="memory").evidence
    yield from report(name, gpu, list(findings(gpu, cpu, runs.texts)), needs or "", runs.texts)


def report(name: str, gpu: Run, found: list[Finding], needs: str, sources: dict[str, bytes]) -> Iterator[str]:
    """Yield the lines that are printed: what was looked at, the findings, the memory of a step."""
    steps, end = 0, -1
    for each in sorted(gpu.evidence.steps.values(), key=lambda ticks: ticks[0]):
        steps += len(each) if each[0] > end else 0  # optimizers that take turns count once
        end = max(end, each[-1])
    lines = sum(map(len, gpu.lines.values()))
    yield f"{name} ran on the practice GPU: {steps} training step{'s' * (steps != 1)}, {lines} lines."
    if gpu.shortened:
        yield "Long loops end early here, so a real run may have more steps than are counted."
    if gpu.stopped:
        yield f"The run did not come to the end of the script: {gpu.stopped}."
    for heading in dict.fromkeys(kind.heading for kind in TABLE.values()):
        chosen = [each for each in found if TABLE[each.kind].heading == heading]
        if chosen:
            yield f"\n{heading}"
        for each in sorted(chosen, key=lambda each: each.places):
            yield ""
            for file, line in each.places:
                text = sources.get(file, b"").decode("utf-8", "replace").splitlines()[line - 1 : line]
                yield f"  {file}, line {line}:  {''.join(text).strip()}"
            yield textwrap.fill(each.text, 84, initial_indent="    ", subsequent_indent="    ")
            instead = f"    Write:  {each.instead}"
            yield textwrap.fill(instead, 84, subsequent_indent=" " * 12, break_on_hyphens=False)
            number = TABLE[each.kind].lesson
            yield f"    Lesson {number}, {LESSONS[number]}"
    if 0 < steps < _FEW:
        yield f"\nWhat happens in each step is not known: that needs {_FEW} steps."
    if not found:
        yield "Nothing was found that is wrong or slow." if steps else "No optimizer took a step to look at."
    if needs:
        yield "\nNeeds\n\n" + textwrap.fill(needs, 84, initial_indent="  ", subsequent_indent="  ")


# -- rules


def findings(gpu: Run, cpu: Run, sources: dict[str, bytes]) -> Iterator[Finding]:
    """Yield what the evidence of the runs shows."""
    seen: Evidence = gpu.evidence
    trees = {file: ast.parse(sources[file]) for file in gpu.lines}
    yield from _without_a_gpu(cpu, {file: sources[file] for file in sorted(gpu.lines)})
    for place, calls in seen.calls.items():
        yield from _calls(seen, place, calls)
    for place, kept in seen.kept.items():
        yield _kept(place, kept, trees)
    for number, feed in seen.feeds.items():
        yield from _feeds(seen, number, feed, trees)
    for each in seen.optimizers.values():
        yield from _optimizers(each)
    half = seen.half | {each.place for each in seen.optimizers.values() if "torch.float16" in each.dtypes}
    if half and not seen.scaled and not any(b"GradScaler" in text for text in sources.values()):
        yield Finding(
            "half",
            [min(half)],
            'torch.autocast("cuda", dtype=torch.bfloat16)  # or add a torch.amp.GradScaler',
            "This is trained in float16, without a GradScaler. Small gradients become zero in float16.",
        )
    for constant in seen.constants:
        yield from _constants(constant, trees[constant.file])
    yield from _thrown(seen)
    for place in seen.parallel:
        yield Finding(
            "parallel",
            [place],
            "if torch.cuda.device_count() > 1:  # around this line",
            'There was one GPU here. With one, DataParallel only adds work to each call, and "module." to '
            "the names in state_dict(). With several, DistributedDataParallel is faster.",
        )
    yield from _reads(seen)
    for (place, made), copies in seen.copies.items():
        if isinstance(made, str) and (often := _often(copies.ticks, seen)):
            yield Finding(
                "made",
                [place],
                f"torch.{made}(..., device=device)  # or that of a tensor beside it: x.device",
                f"torch.{made} made a tensor on the CPU, and it was copied to the GPU, {often}.",
            )


def _without_a_gpu(cpu: Run, sources: dict[str, bytes]) -> Iterator[Finding]:
    failure = cpu.failure
    if not (failure and failure.frames and any(each in failure.message for each in _NO_GPU)):
        return
    here = failure.frames[-1].file, failure.frames[-1].line
    if "deserialize" in failure.message:
        instead = "torch.load(..., map_location=device)"
        text = "The file was saved from a GPU. On a computer without one this line fails."
        yield Finding("load", [here], instead, text)
        return
    lines = [
        (file, text[: each.start()].count(b"\n") + 1)
        for file, text in sources.items()
        for each in _NAMED.finditer(text)
    ]
    instead = f"device = {CHOICE}  # once; then .to(device)"
    option = OPTION.search(b"\n".join(sources.values()).decode(errors="replace"))
    if option and re.search(rf"{option[1]}['\"].*default=['\"]cuda[:\d]*['\"]", option.string):
        instead = f"default={CHOICE}  # of the option {option[1]}"
    which = "the last of these lines" if lines else "this line"
    text = f"On a computer without a GPU {which} fails: {failure.message.split('. ')[0]}"
    yield Finding("no gpu", [*lines, here], instead, text)


def _calls(seen: Evidence, place: Place, calls: Calls) -> Iterator[Finding]:
    unused = calls.tracked if calls.tracked >= 2 and not calls.used else 0
    sampled = calls.again or (calls.random and seen.models > 1)  # on purpose: the pictures of a generator
    trains = _regular(calls.ticks, seen)  # it is a part of each step, perhaps of another model's
    tests = 0 if sampled or trains else unused or (0 if calls.tests_evaluating else calls.tests_training)
    if calls.layers and tests and not calls.used:
        yield Finding(
            "mode",
            [place],
            "model.eval()  # before this line; and model.train() before the next epoch",
            f"{calls.model} was called here {_times(tests)} outside of training, but it was in training "
            f"mode: {' and '.join(sorted(calls.layers))} still changed what it computes.",
        )
    if unused:
        yield Finding(
            "unused",
            [place],
            "with torch.no_grad():  # around this line",
            f"PyTorch kept what a backward pass needs, {_times(unused)}, and no backward pass used it. That "
            "costs memory and time.",
        )


def _kept(place: Place, kept: Kept, trees: dict[str, ast.Module]) -> Finding:
    line = kept.line
    if not line:
        calls = (each for each in _all(trees[kept.file], ast.Call))
        appends = [each.lineno for each in calls if ast.unparse(each.func) == f"{kept.name}.append"]
        line = min(appends, key=lambda each: abs(each - place[1]), default=0)
    return Finding(
        "kept",
        [(kept.file, line) if line else place],
        f"loss.item() or loss.detach(), where {kept.name} gets it",
        f"{kept.name} holds the history of earlier steps: {kept.alive} of the last {kept.results} results of "
        f"line {place[1]} still had theirs two backward passes later. So each step needs more memory.",
    )


def _optimizers(seen: Steps) -> Iterator[Finding]:
    places = list(dict.fromkeys((seen.built, seen.place)))
    if seen.steps >= 3 and seen.idle == seen.steps:
        yield Finding(
            "idle",
            places,
            f"torch.optim.{seen.optimizer}(model.parameters(), ...)  # of the model that is trained",
            f"{seen.optimizer} took {seen.steps} steps, and its parameters had no gradient in any of them, "
            "so they never change. Either another model is trained, or zero_grad() stands between backward() "
            "and step().",
        )
    if "torch.float64" in seen.dtypes:
        yield Finding(
            "double",
            places,
            "model.float()  # and the data; unless you need the digits",
            f"Parameters in float64 were trained here, in {seen.steps} steps. They need twice the memory of "
            "float32, and most GPUs compute much slower with them.",
        )


def _constants(constant: Constant, tree: ast.Module) -> Iterator[Finding]:
    name = constant.name
    for node in _all(tree, ast.ClassDef, constant.owner, "__init__", ast.Assign):
        if constant.uses and constant.calls >= 3 and ast.unparse(node.targets[0]) == f"self.{name}":
            yield Finding(
                "plain",
                [(constant.file, node.lineno)],
                f'self.register_buffer("{name}", {ast.unparse(node.value)})',
                f"forward() used self.{name} {_times(constant.uses)}. It is a plain attribute: "
                "model.to(device) does not move it, and state_dict() does not save it.",
            )


def _thrown(seen: Evidence) -> Iterator[Finding]:
    for (place, free), gradients in seen.gradients.items():
        others = [each for (there, _), each in seen.gradients.items() if there == place]
        used = any(each.used >= _FEW for each in others)
        if free and used and gradients.wasted >= _FEW and not gradients.used:
            yield Finding(
                "thrown",
                [place],
                ".detach()  # of what the other model made, before this loss is computed from it",
                "This also computed the gradients of the parameters that another optimizer "
                f"({gradients.optimizer}) trains, {_times(gradients.wasted)}, and each time zero_grad() "
                "cleared them before its step. Nothing used them.",
            )


def _reads(seen: Evidence) -> Iterator[Finding]:
    regular = {key: hits for key, ticks in seen.reads.items() if (hits := _regular(ticks, seen))}
    for kind in ("waits", "back"):
        chosen = {key: hits for key, hits in regular.items() if (key[1] in _BACK) == (kind == "back")}
        if not chosen:
            continue
        places, calls = (sorted(set(part)) for part in zip(*chosen, strict=True))
        names, often = ", ".join(calls), _in_steps(*max(chosen.values()))
        if kind == "waits":
            instead = "total += loss.detach() for a sum, and read it at the end; print or log every 100 steps"
            text = (
                f"Python waits for the GPU here ({names}), {often}. Meanwhile it gives the GPU no new work. "
                "That costs little where steps are small, as the GPU then waits for Python anyway."
            )
        else:
            instead = "compute with it on the GPU; or do not move it there, if only the CPU needs it"
            text = f"{names} brought a tensor back from the GPU here, {often}. Python waits for it each time."
        yield Finding(kind, places, instead, text)


def _feeds(seen: Evidence, number: int, feed: Feed, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    learned, starts = len(feed.trained), len(feed.starts)
    batch, rest = feed.batch_size, feed.samples % feed.batch_size
    trains = learned >= 3 and learned >= 0.8 * feed.draws
    copies = {place: each for (place, key), each in seen.copies.items() if key == number}
    kib = sum(each.nbytes for each in copies.values()) // max(feed.draws, 1) // 1024
    same = len(set(feed.firsts)) == 1 and len(feed.firsts) > 1
    if feed.in_order and same and trains and feed.labelled == feed.draws and feed.samples > batch:
        yield Finding(
            "order",
            [feed.built],
            "DataLoader(..., shuffle=True)",
            f"This loader does not shuffle, and {learned} of its batches were trained on, in the same order "
            "in each epoch. A model learns worse from that.",
        )
    changes = len(feed.data) > 1  # persistent workers would go on with the data of the beginning
    if feed.num_workers and not feed.persistent_workers and starts > 1 and not changes:
        yield Finding(
            "workers",
            [feed.built],
            "DataLoader(..., persistent_workers=True)  # where num_workers is more than 0",
            f"The loop over this loader began {_times(starts)}, and each time its worker processes "
            f"({feed.num_workers}) were started again.",
        )
    for place, each in copies.items():
        if trains and feed.pin_memory and each.waits >= 0.8 * feed.draws:
            yield Finding(
                "blocking",
                [place],
                ".to(device, non_blocking=True)",
                f"{each.waits} tensors were copied here from pinned memory, and Python waited for each copy. "
                "With non_blocking=True it goes on.",
            )
    if trains and kib * 1024 >= _LEAST:
        often = any(len(each.ticks) >= 0.8 * feed.draws for each in copies.values())
        # without workers the program itself would pin, which costs as much
        if feed.num_workers and not feed.pin_memory and often:
            yield Finding(
                "pinned",
                [feed.built],
                "DataLoader(..., pin_memory=True), and then .to(device, non_blocking=True)",
                f"{feed.draws} batches of {kib:,} KiB were copied to the GPU from ordinary memory. Python "
                "waits for each such copy.",
            )
        for place, each in copies.items():
            if 0 < each.images == each.were_bytes:
                yield Finding(
                    "bytes",
                    [place],
                    "images.to(device).float() / 255  # with PILToTensor() in place of ToTensor()",
                    f"These images were bytes, and travel to the GPU as float32: {kib:,} KiB a batch, four "
                    "times as much as bytes.",
                )
    if not feed.drop_last and feed.samples > batch and rest and feed.draws_all:
        for file, start in dict.fromkeys(feed.starts):
            for sums, mean, loader in _means(trees[file], (file, start), seen):
                yield Finding(
                    "means",
                    [(file, sums), (file, mean)],
                    f"each mean times the number of its samples, and divide the sum by len({loader}.dataset)",
                    f"The last batch has {rest} samples, the others have {batch}. Its mean counts as much as "
                    "theirs, so this is not the mean over all samples.",
                )


def _all(tree: ast.AST, *path: Any) -> Iterator[Any]:
    """Yield the nodes of a type, or definitions of a name, one inside the other."""
    first, *rest = path
    for node in ast.walk(tree):
        if getattr(node, "name", None) == first if isinstance(first, str) else isinstance(node, first):
            yield from _all(node, *rest) if rest else (node,)


def _means(tree: ast.Module, start: Place, seen: Evidence) -> Iterator[tuple[int, int, str]]:
    """Yield lines that sum means of batches in a loop, and divide the sum by the number of batches."""
    loops = [node for node in _all(tree, ast.For) if node.lineno == start[1] and not _trains(node)]
    scopes = [node for node in _all(tree, ast.FunctionDef) if set(loops) & set(ast.walk(node))]
    means, sums = set(), {}
    for node in (node for loop in loops for node in _all(loop, ast.Assign)):
        if any((start[0], line) in seen.means for line in range(node.lineno, node.end_lineno + 1)):
            means.add(ast.unparse(node.targets[0]))
    for node in (node for loop in loops for node in _all(loop, ast.AugAssign)):
        bare = _bare(node.value)
        called = isinstance(ast.parse(bare, mode="eval").body, ast.Call)
        if isinstance(node.op, ast.Add) and (
            bare in means or (called and (start[0], node.lineno) in seen.means)
        ):
            sums[ast.unparse(node.target)] = node.lineno
    for node in _all([tree, *scopes][-1], ast.BinOp | ast.AugAssign) if loops else ():
        pair = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        (total, by), loader = map(_bare, pair), ast.unparse(pair[1])[4:-1]
        divides = isinstance(node.op, ast.Div) and by == f"len({loader})"
        if divides and total in sums and sums[total] < node.lineno and loader in ast.unparse(loops[0].iter):
            yield sums.pop(total), node.lineno, loader


def _trains(loop: ast.For) -> bool:
    """Return whether a loop asks for gradients: a mean over a model that changes is a rough one anyway."""
    return any(getattr(each.func, "attr", "") == "backward" for each in _all(loop, ast.Call))


def _bare(node: ast.expr) -> str:
    """Return what a value is read from: ``loss`` of ``loss.item()``."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "float" and len(node.args) == 1:
        return _bare(node.args[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return _bare(node.func.value)
    return _bare(node.value) if isinstance(node, ast.Attribute) and node.attr == "data" else ast.unparse(node)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _often(ticks: Sequence[int], seen: Evidence) -> str:
    """Return in words how often in the steps something happened; "" if not in most of some line's steps."""
    found = _regular(ticks, seen)
    return _in_steps(*found) if found else ""


def _in_steps(hits: int, steps: int) -> str:
    return "in each step" if hits == steps else f"in {hits} of {steps} steps"


def _regular(ticks: Sequence[int], seen: Evidence) -> tuple[int, int] | None:
    """Return in how many steps of how many something happened; None if not in most of some line's steps."""
    for edges in seen.steps.values():
        pairs = list(itertools.pairwise(edges))
        hits = sum(any(first < tick <= last for tick in ticks) for first, last in pairs)
        if len(pairs) >= _FEW - 1 and hits >= 0.8 * len(pairs):
            return hits, len(pairs)
    return None
