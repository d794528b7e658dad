"""The command ``python -m gpulesson review``: faults of a script that uses a GPU, as counted in a run."""

from __future__ import annotations

import ast
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson_tools.porting import command
from gpulesson_tools.porting.child import WHOLE, Loops
from gpulesson_tools.porting.facts import CHOICE, LESSONS, OPTION, Record, explained
from gpulesson_tools.programs import arguments

if TYPE_CHECKING:
    from gpulesson_tools.porting.observe import Evidence, Note, Place
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
# A kind of finding: `name | what it is about | lesson`, a line `Write: ` with what to write instead, the text
# of the report. A rule fills in [facts]; [times] becomes "once" or "3 times". `# ` begins a group of kinds.
_WORDS = f"""
# Fails elsewhere
no gpu | a line that fails on a computer without a GPU | 1
Write: device = {CHOICE}  # once; then .to(device)
On a computer without a GPU [which] fails: [message]
load | files from a GPU that are loaded without map_location | 6
Write: torch.load(..., map_location=device)
The file was saved from a GPU. On a computer without one this line fails.
# Silent: no error, but a wrong or worse result
mode | a model that is tested in training mode, with Dropout or BatchNorm in it | 7
Write: model.eval()  # before this line; and model.train() before the next epoch
[model] was called here [times] outside of training, but it was in training mode: [layers] still changed what
it computes.
kept | results that keep the history of earlier steps | 7
Write: loss.item() or loss.detach(), where [name] gets it
[name] holds the history of earlier steps: [alive] of the last [all] results of line [line] still had theirs
two backward passes later. So each step needs more memory.
means | a mean of the means of batches, of which the last is smaller | 5
Write: each mean times the number of its samples, and divide the sum by len([loader].dataset)
The last batch has [last] samples, the others have [batch]. Its mean counts as much as theirs, so this is not
the mean over all samples.
order | batches for training that are not shuffled | 4
Write: DataLoader(..., shuffle=True)
This loader does not shuffle, and [number] of its batches were trained on, in the same order in each epoch.
A model learns worse from that.
idle | an optimizer whose parameters never have a gradient | 4
Write: torch.optim.[name](model.parameters(), ...)  # of the model that is trained
[name] took [steps] steps, and its parameters had no gradient in any of them, so they never change. Either
another model is trained, or zero_grad() stands between backward() and step().
plain | constant tensors of a model that are plain attributes | 7
Write: self.register_buffer("[name]", [value])
forward() used self.[name] [times]. It is a plain attribute: model.to(device) does not move it, and
state_dict() does not save it.
half | training in float16 without a GradScaler | 12
Write: torch.autocast("cuda", dtype=torch.bfloat16)  # or add a torch.amp.GradScaler
This is trained in float16, without a GradScaler. Small gradients become zero in float16.
# Costs: time or memory that you can save
unused | calls of a model whose history no backward pass uses | 10
Write: with torch.no_grad():  # around this line
PyTorch kept what a backward pass needs, [times], and no backward pass used it. That costs memory and time.
thrown | backward passes that go further back than the step | 7
Write: .detach()  # of what the other model made, before this loss is computed from it
This also computed the gradients of the parameters that another optimizer ([name]) trains, [times], and each
time zero_grad() cleared them before its step. Nothing used them.
parallel | DataParallel with one GPU | 14
Write: if torch.cuda.device_count() > 1:  # around this line
There was one GPU here. With one, DataParallel only adds work to each call, and "module." to the names in
state_dict(). With several, DistributedDataParallel is faster.
waits | lines at which Python waits for the GPU in each step | 8
Write: total += loss.detach() for a sum, and read it at the end; print or log every 100 steps
Python waits for the GPU here ([calls]), [often]. Meanwhile it gives the GPU no new work.
back | tensors that come back to the CPU in each step | 8
Write: compute with it on the GPU; or do not move it there, if only the CPU needs it
[calls] brought a tensor back from the GPU here, [often]. Python waits for it each time.
pinned | batches that are copied from ordinary memory | 9
Write: DataLoader(..., pin_memory=True), and then .to(device, non_blocking=True)
[number] batches of [size] KiB were copied to the GPU from ordinary memory. Python waits for each such copy.
blocking | copies from pinned memory that are waited for | 9
Write: .to(device, non_blocking=True)
[number] tensors were copied here from pinned memory, and Python waited for each copy. With non_blocking=True
it goes on.
workers | worker processes that start anew in each epoch | 9
Write: DataLoader(..., persistent_workers=True)  # where num_workers is more than 0
The loop over this loader began [times], and each time its worker processes ([workers]) were started anew.
double | parameters in float64 | 7
Write: model.float()  # and the data; unless you need the digits
Parameters in float64 were trained here, in [steps] steps. They need twice the memory of float32, and most
GPUs compute much slower with them.
bytes | images that were bytes and travel as float32 | 9
Write: images.to(device).float() / 255  # with PILToTensor() in place of ToTensor()
These images were bytes, and travel to the GPU as float32: [size] KiB a batch, four times as much as bytes.
made | tensors that are made on the CPU and copied in each step | 2
Write: torch.[name](..., device=device)  # or that of a tensor beside it: x.device
torch.[name] made a tensor on the CPU, and it was copied to the GPU, [often].
"""


class Kind(NamedTuple):
    """A kind of finding: its heading, subject and lesson, what to write, and what the report says."""

    heading: str
    about: str
    lesson: int
    instead: str
    text: str


class Finding(NamedTuple):
    """A fault: its kind, a key of ``TABLE``; where it is; in words what was seen, and what to write."""

    kind: str
    places: tuple[Place, ...]
    text: str
    instead: str


def _table() -> dict[str, Kind]:
    """Return the kinds of findings by name, in the order of the report."""
    table, heading, name = {}, "", ""
    for line in _WORDS.strip().splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line.count(" | ") == 2:
            name, about, lesson = line.split(" | ")
            table[name] = Kind(heading, about, int(lesson), "", "")
        elif line.startswith("Write: "):
            table[name] = table[name]._replace(instead=line.removeprefix("Write: "))
        else:
            table[name] = table[name]._replace(text=f"{table[name].text} {line}".strip())
    return table


TABLE = _table()


def _found(kind: str, places: Iterable[Place], **facts: Any) -> Finding:
    instead, text = TABLE[kind].instead, TABLE[kind].text
    for name, value in facts.items():
        value = ("once" if value == 1 else f"{value} times") if name == "times" else str(value)
        instead, text = (each.replace(f"[{name}]", value) for each in (instead, text))
    return Finding(kind, tuple(places), text, instead)


def main(words: Sequence[str], prog: str) -> int:
    """Review the script of a command line and print what was found; 1 if it does not run."""
    parser = arguments.parser(prog, "Find what is wrong or slow in a training script that uses a GPU.")
    command.add_options(parser)
    options, program = arguments.parse(parser, words)
    status = 1
    with command.refusing():
        script, own, module = command.program_of(program)
        with command.trial(script, own, options.limit, options.root, module=module) as runs:
            print("\n".join(_reviewed(runs, script.name, program)))
            status = 0
    return status


def _reviewed(runs: Runs, name: str, program: Sequence[str]) -> Iterator[str]:
    """Run the script and yield the lines that are printed."""
    command.tell("the script on the practice GPU")
    for loops in (Loops(short=True), WHOLE):  # it may need its loops in full
        gpu = runs.run({}, gpu=True, loops=loops, review="faults")
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
        yield f"    python -m gpulesson port {' '.join(program)}"
        return
    command.tell("the script without a GPU")
    cpu = runs.run({}, gpu=False, loops=loops)
    command.tell("what a step needs")
    needs = runs.run({}, gpu=True, loops=loops, review="memory").evidence
    yield from report(name, gpu, list(findings(gpu, cpu, runs.texts)), needs or "", runs.texts)


def report(
    name: str, gpu: Record, found: list[Finding], needs: str, sources: dict[str, bytes]
) -> Iterator[str]:
    """Yield the lines that are printed: what was looked at, the findings, the memory of a step."""
    steps, end = 0, -1
    for each in sorted((each.ticks for each in gpu.evidence.steps.values()), key=lambda ticks: ticks[0]):
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
        yield f"\nWhat happens in each step was not told: that needs {_FEW} steps."
    if not found:
        yield "Nothing was found that is wrong or slow." if steps else "No optimizer took a step to look at."
    if needs:
        yield "\nNeeds\n\n" + textwrap.fill(needs, 84, initial_indent="  ", subsequent_indent="  ")


# -- rules


def findings(gpu: Record, cpu: Record, sources: dict[str, bytes]) -> Iterator[Finding]:
    """Yield what the evidence of the runs carries."""
    seen: Evidence = gpu.evidence
    trees = {file: ast.parse(sources[file]) for file in gpu.lines}
    failure = cpu.failure
    if failure and failure.frames and any(each in failure.message for each in _NO_GPU):
        spot = failure.frames[-1]
        kind = "load" if "deserialize" in failure.message else "no gpu"
        named = [
            (file, sources[file][: each.start()].count(b"\n") + 1)
            for file in sorted(gpu.lines)
            for each in _NAMED.finditer(sources[file])
        ]
        lines = [*(named if kind == "no gpu" else ()), (spot.file, spot.line)]
        which = "this line" if len(lines) == 1 else "the last of these lines"
        found = _found(kind, lines, which=which, message=failure.message.split(". ")[0])
        option = OPTION.search(b"\n".join(sources[file] for file in gpu.lines).decode(errors="replace"))
        default = option and re.search(rf"{option[1]}['\"].*default=['\"]cuda[:\d]*['\"]", option.string)
        if option and default and kind == "no gpu":
            instead = f"default={CHOICE}  # of the option {option[1]}"
            found = found._replace(instead=instead)
        yield found
    for place, calls in seen.calls.items():
        yield from _calls(seen, place, calls)
    for place, kept in seen.kept.items():
        (file, line), nearest = kept.facts["place"], sys.maxsize
        for node in _all(trees[file], ast.Call) if not line else ():
            if ast.unparse(node.func) == f"{kept.name}.append" and abs(node.lineno - place[1]) < nearest:
                line, nearest = node.lineno, abs(node.lineno - place[1])
        yield _found("kept", [(file, line) if line else place], name=kept.name, line=place[1], **kept.facts)
    for number, feed in seen.feeds.items():
        yield from _feeds(seen, number, feed, trees)
    for each in seen.optimizers.values():
        places = dict.fromkeys((each.facts["built"], each.facts["steps"]))
        steps, idle = each.count["steps"], each.count["idle"]
        if steps >= 3 and idle == steps:
            yield _found("idle", places, name=each.name, steps=steps)
        if "torch.float64" in each.words:
            yield _found("double", places, steps=steps)
        if "torch.float16" in each.words:
            seen.half |= {each.facts["steps"]}
    if not seen.scaled and not any(b"GradScaler" in text for text in sources.values()):
        yield from (_found("half", [place]) for place in sorted(seen.half)[:1])
    for (file, owner, name), note in seen.plain.items():
        for node in _all(trees[file], ast.ClassDef, owner, "__init__", ast.Assign):
            if (
                note.count["uses"]
                and note.count["calls"] >= 3
                and ast.unparse(node.targets[0]) == f"self.{name}"
            ):
                value, uses = ast.unparse(node.value), note.count["uses"]
                yield _found("plain", [(file, node.lineno)], name=name, value=value, times=uses)
    for (place, free), note in seen.thrown.items():
        others = [each for (there, _), each in seen.thrown.items() if there == place]
        used = any(each.count["used"] >= _FEW for each in others)
        if free and used and note.count["wasted"] >= _FEW and not note.count["used"]:
            yield _found("thrown", [place], name=note.name, times=note.count["wasted"])
    for place in seen.parallel:
        yield _found("parallel", [place])
    waits = {key: hits for key, each in seen.reads.items() if (hits := _regular(each.ticks, seen))}
    for kind in ("waits", "back"):
        chosen = {key: hits for key, hits in waits.items() if (key[1] in _BACK) == (kind == "back")}
        if chosen:
            where, words = (sorted(set(part)) for part in zip(*chosen, strict=True))
            hit, of = max(chosen.values())
            yield _found(kind, where, calls=", ".join(words), often=_often(hit, of))
    for (place, made), note in seen.copies.items():
        if isinstance(made, str) and (regular := _regular(note.ticks, seen)):
            yield _found("made", [place], name=made, often=_often(*regular))


def _all(tree: ast.AST, *path: Any) -> Iterator[Any]:
    """Yield the nodes of a type, or definitions of a name, one inside the other."""
    first, *rest = path
    for node in ast.walk(tree):
        if getattr(node, "name", None) == first if isinstance(first, str) else isinstance(node, first):
            yield from _all(node, *rest) if rest else (node,)


def _calls(seen: Evidence, place: Place, calls: Note) -> Iterator[Finding]:
    count = calls.count
    unused = count["tracked"] if count["tracked"] >= 2 and not count["used"] else 0
    sampled = count["again"] or (
        count["random"] and seen.models > 1
    )  # on purpose: the pictures of a generator
    trains = _regular(calls.ticks, seen)  # it is a part of each step, perhaps of another model's
    tests = 0 if sampled or trains else unused or (0 if count["calm"] else count["quiet"])
    if calls.words and tests and not count["used"]:
        layers = " and ".join(sorted(calls.words))
        yield _found("mode", [place], model=calls.name, times=tests, layers=layers)
    if unused:
        yield _found("unused", [place], times=unused)


def _feeds(seen: Evidence, number: int, feed: Note, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    facts, draws = feed.facts, feed.count["draws"]
    learned, starts = len(feed.words), len(facts["starts"])
    batch, size = facts["batch_size"], facts["size"]
    trains = learned >= 3 and learned >= 0.8 * draws
    copies = {place: each for (place, key), each in seen.copies.items() if key == number}
    kib = sum(each.count["bytes"] for each in copies.values()) // max(draws, 1) // 1024
    same = len(set(facts["firsts"])) == 1 and len(facts["firsts"]) > 1
    if facts["in order"] and same and trains and feed.count["labels"] == draws and size > batch:
        yield _found("order", [facts["built"]], number=learned)
    changes = len(set(facts["data"])) > 1  # persistent workers would go on with the data of the beginning
    if facts["num_workers"] and not facts["persistent_workers"] and starts > 1 and not changes:
        yield _found("workers", [facts["built"]], times=starts, workers=facts["num_workers"])
    for place, each in copies.items():
        if trains and facts["pin_memory"] and each.count["waits"] >= 0.8 * draws:
            yield _found("blocking", [place], number=each.count["waits"])
    if trains and kib * 1024 >= _LEAST:
        workers = facts["num_workers"]  # without them the program itself would pin, which costs as much
        if (
            workers
            and not facts["pin_memory"]
            and any(len(each.ticks) >= 0.8 * draws for each in copies.values())
        ):
            yield _found("pinned", [facts["built"]], number=draws, size=f"{kib:,}")
        for place, each in copies.items():
            if 0 < each.count["images"] == each.count["were bytes"]:
                yield _found("bytes", [place], size=f"{kib:,}")
    if not facts["drop_last"] and size > batch and size % batch and facts["all"]:
        for place in dict.fromkeys(facts["starts"]):
            for sums, mean, loader in _means(trees[place[0]], place, seen):
                places = [(place[0], sums), (place[0], mean)]
                yield _found("means", places, last=size % batch, batch=batch, loader=loader)


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


def _often(hits: int, steps: int) -> str:
    return "in each step" if hits == steps else f"in {hits} of {steps} steps"


def _regular(ticks: Sequence[int], seen: Evidence) -> tuple[int, int] | None:
    """Return in how many steps of how many something happened; None if not in most of some line's steps."""
    for edges in (each.ticks for each in seen.steps.values()):
        pairs = list(itertools.pairwise(edges))
        hits = sum(any(first < tick <= last for tick in ticks) for first, last in pairs)
        if len(pairs) >= _FEW - 1 and hits >= 0.8 * len(pairs):
            return hits, len(pairs)
    return None
