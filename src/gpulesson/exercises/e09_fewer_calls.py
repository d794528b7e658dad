"""Exercise 9: fewer calls and fewer bytes to feed a GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpulesson.exercises import calls
from gpulesson.exercises.exercise import Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import called, definitions, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOTHING_FED = Diagnosis(
    "nothing-fed",
    "The check calls feed(pictures, device) with its own dataset, and takes one batch after the other.",
    "Yield every batch, as the starter does: yield inputs, targets.",
)
NO_PAIRS = Diagnosis(
    "no-pairs",
    "A training loop takes pairs from it: for inputs, targets in feed(pictures, device).",
    "Yield two tensors each time: the images of a batch, then their labels.",
)
RETURNED_TOO_EARLY = Diagnosis(
    "returned-too-early",
    "A return or break inside the loop ends it after one batch.",
    "Use yield in the loop: it hands over a batch, and the loop goes on.",
)
SAMPLES_MISSING = Diagnosis(
    "samples-missing",
    "An epoch uses every image once, also those of the last incomplete batch.",
    "Keep the last batch, however small: drop_last=False.",
)
SLICES_MISSING = Diagnosis(
    "samples-missing",
    "An epoch uses every image once, also those of the last incomplete batch.",
    "Begin a batch at every 64th image, range(0, len(pictures), 64): the last slice may be shorter.",
)
OTHER_DATA = Diagnosis(
    "other-data",
    "The check gives feed() its own dataset, with other images and another length.",
    "Use the argument pictures and len(pictures), and no variable from outside of the function.",
)
EXTRA_DIMENSION = Diagnosis(
    "extra-dimension",
    "The sampler gives the loader whole batches, and the loader makes a batch of each of them again.",
    "Switch that off with batch_size=None: DataLoader(…, sampler=batches, batch_size=None). With "
    "__getitems__, use collate_fn=lambda batch: batch.",
)
OTHER_BATCHES = Diagnosis(
    "other-batches",
    "The batch size changes how well a model learns. Faster feeding must not change it.",
    "Keep batches of 64; the last one may be smaller.",
)
STILL_ON_HOST = Diagnosis(
    "still-on-host",
    "The model is on the device, and needs images and labels there.",
    "Move both with .to(device), and yield what it returns: the tensor itself stays where it is.",
)
BYTES_ARRIVED = Diagnosis(
    "bytes-arrived",
    "A Linear layer takes float32. Bytes are good for copying, not for computing.",
    "Convert them on the device: inputs.to(device).float() / 255.",
)
OTHER_FLOATS = Diagnosis(
    "other-floats",
    "The model's weights are float32, so its inputs must be float32, too.",
    "Convert with .float(), on the device.",
)
NOT_SCALED = Diagnosis(
    "not-scaled",
    "A pixel is a number from 0 to 255. The model expects numbers from 0 to 1.",
    "Divide by 255 on the device, after .float().",
)
DIVIDED_AS_INTEGERS = Diagnosis(
    "divided-as-integers",
    "// drops what is behind the decimal point. A pixel is at most 255, so nearly all of them become 0.",
    "Divide with a single /, after .float(): inputs.float() / 255.",
)
SCALED_OTHERWISE = Diagnosis(
    "scaled-otherwise",
    "The model expects what the starter gives it: pixels divided by 255, and nothing else.",
    "Write inputs.float() / 255.",
)
SCALED_TWICE = Diagnosis(
    "scaled-twice",
    "Divided by 255 twice, all images are nearly black.",
    "Divide in one place only: in feed(), on the device.",
)
ORDER_CHANGED = Diagnosis(
    "order-changed",
    "All images arrive, but not in the order of the dataset. So this epoch cannot be compared with the "
    "one before.",
    "Keep the order here: SequentialSampler, or shuffle=False. (To train you would shuffle.)",
)
OTHER_IMAGES = Diagnosis(
    "other-images",
    "Fewer calls and fewer bytes help only if the same images arrive.",
    "Compare your first batch with pixels[:64].float() / 255.",
)
OTHER_LABELS = Diagnosis(
    "other-labels",
    "Every image needs its own label, as it is in the dataset.",
    "Select images and labels with the same list of numbers, and do not convert the labels.",
)
CALLED_FOR_EACH_SAMPLE = Diagnosis(
    "called-for-each-sample",
    "A loader that asks for one sample at a time calls Python once for each. Worker processes do not "
    "make the calls fewer.",
    "Fetch a whole batch with one call: batches = BatchSampler(…) yields lists of numbers, and "
    "DataLoader(…, sampler=batches, batch_size=None) uses them.",
)
ASKED_ONE_BY_ONE = Diagnosis(
    "called-for-each-sample",
    "The loader asks once for each batch. But __getitems__ asks for each of its samples again, one by one.",
    "Pick the whole batch at once: in __getitems__, return self[numbers], and give the loader "
    "collate_fn=lambda batch: batch.",
)
FLOATS_COPIED = Diagnosis(
    "floats-copied",
    "A float32 takes four bytes, a pixel only one. Copied as bytes, the images need a quarter of the time.",
    "Copy the bytes, then convert on the device: inputs.to(device).float() / 255.",
)
COPIED_TWICE = Diagnosis(
    "copied-twice",
    "Every byte has to be copied only once.",
    "Look for a second .to(device) of the same data, or for data that is larger than it need be.",
)
COPIED_PIECE_BY_PIECE = Diagnosis(
    "copied-piece-by-piece",
    "Every copy costs time, however small it is.",
    "Copy whole batches: one copy for the images, one for the labels.",
)

_BATCH = 64
_SIZES = ((150, 784), (256, 36))
"""Images and pixels of the check's own datasets."""
_LINES = {
    NOTHING_FED: r"\byield\b|\breturn\b",
    NO_PAIRS: r"\byield\b|\breturn\b",
    RETURNED_TOO_EARLY: r"\breturn\b|\bbreak\b",
    SAMPLES_MISSING: r"drop_last\s*=\s*True then \bbreak\b|//|<=? *len\(",
    OTHER_DATA: r"(?<![.\w])(pixels|labels|2000|2_000|32)\b",
    EXTRA_DIMENSION: r"\bDataLoader\(",
    OTHER_BATCHES: r"batch_size\s*=\s*\d then ^BATCH\s*=\s*(?!64\b) then BatchSampler\(|range\(|split\(",
    STILL_ON_HOST: r"\byield\b",
    BYTES_ARRIVED: r"\.to\(|\.cuda\(",
    OTHER_FLOATS: r"float64|float16|bfloat16|\.double\(|\.half\(",
    NOT_SCALED: r"\.float\(|float32",
    SCALED_TWICE: r"/\s*255|\.div_?\(",
    DIVIDED_AS_INTEGERS: r"//\s*(?!BATCH|64)[\d(]|floor_divide|rounding_mode|\.div_?\( then //",
    SCALED_OTHERWISE: r"/\s*(\d|\()|\.(div|mul|sub)_?\(|\*\s*\(?[\d.]|/",
    ORDER_CHANGED: r"shuffle\s*=\s*True|RandomSampler|randperm|random|sort",
    OTHER_IMAGES: r"\.float\(|float32|\byield\b",
    OTHER_LABELS: r"\byield\b",
    CALLED_FOR_EACH_SAMPLE: r"\bDataLoader\(|\bfor\b.*\bin\b.*\]|stack\(",
}
"""What the faulty line looks like, where the run does not tell; first the likelier."""
_CONTENT = {diagnosis.kind: diagnosis for diagnosis in _LINES}


def feeding(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is fed wrongly, or what is asked for and copied too often."""
    if called.failed(trace):
        return
    epochs = trace.facts.get("epochs", [])
    if not epochs:
        yield source.failure(NOTHING_FED, definitions.line(source.lines, "feed"), "No batch arrived.")
    for facts in epochs:
        found = list(_found(facts, source))
        if found:
            yield from found
            return


def _found(facts: dict[str, Any], source: Source) -> Iterator[Finding]:
    given = f"for {facts['samples']} images"
    if facts["content"]:
        kind, what = facts["content"]
        diagnosis, line = _CONTENT[kind], _line(source, _CONTENT[kind])
        if diagnosis is SAMPLES_MISSING and not re.search(r"DataLoader|Sampler|drop_last", source.line(line)):
            diagnosis = SLICES_MISSING
        yield source.failure(diagnosis, line, what)
        return
    batches = facts["batches"]
    if facts["calls"] > batches:
        what = (
            f"The dataset was called {facts['calls']} times {given}; expected "
            f"{plural(batches, 'call')}, one for each batch."
        )
        line = _line(source, CALLED_FOR_EACH_SAMPLE)
        own = any(getattr(node, "name", "") == "__getitems__" for node in source_text.all_nodes(source.lines))
        yield source.failure(ASKED_ONE_BY_ONE if own else CALLED_FOR_EACH_SAMPLE, line, what)
    elif facts["operators"] > 40 * batches and facts["copies"] <= 2 * batches + 2:
        what = f"There were {facts['operators']} tensor operations {given} in {batches} batches."
        yield source.failure(CALLED_FOR_EACH_SAMPLE, definitions.line(source.lines, "feed"), what)
    copied, enough = facts["bytes_copied"], facts["bytes_enough"]
    if copied > enough:
        what = f"{copied:,} bytes were copied {given} and their labels; {enough:,} are enough."
        floats = copied >= enough + 2 * facts["samples"] * facts["pixels"]
        yield source.failure(FLOATS_COPIED if floats else COPIED_TWICE, facts["largest_copy"], what)
    elif facts["copies"] > 2 * batches + 2:
        what = (
            f"There were {facts['copies']} copies to the device {given}; {2 * batches} are "
            "enough, two a batch."
        )
        yield source.failure(COPIED_PIECE_BY_PIECE, facts["most_copies"], what)


def _line(source: Source, diagnosis: Diagnosis) -> int:
    """Find the line to change in the learner's text: in feed, in Pictures; else the one that defines feed."""
    lines, names = _without_imports(source.lines), ["feed", "Pictures"]
    if diagnosis in (NO_PAIRS, NOTHING_FED, RETURNED_TOO_EARLY):
        names = ["feed"]
    elif diagnosis is CALLED_FOR_EACH_SAMPLE:
        names = ["Pictures", "feed"] if definitions.first_match(lines, r"def __getitems__") else ["feed"]
    # made outside, perhaps, and used in feed
    elsewhere = diagnosis in (ORDER_CHANGED, OTHER_BATCHES, SAMPLES_MISSING, CALLED_FOR_EACH_SAMPLE)
    matches = (
        definitions.first_match(lines, pattern, *names) for pattern in _LINES[diagnosis].split(" then ")
    )
    found = next(filter(None, matches), 0)
    inside = any(found in definitions.span(lines, name) for name in names)
    return found if found and (inside or elsewhere) else definitions.line(lines, "feed")


def _without_imports(lines: Sequence[str]) -> list[str]:
    """Return the lines with those that import something empty: what is used stands elsewhere."""
    found = [node for node in source_text.all_nodes(lines) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [
        "" if any(source_text.holds(node, number) for node in found) else text
        for number, text in enumerate(lines, 1)
    ]


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Feed datasets of the check's own, and count in a practice GPU of its own."""
    import torch

    from gpulesson.practice import practice_gpu

    with practice_gpu(force=True) as gpu:
        trace.device, trace.simulated = gpu.name, gpu.simulated
        epochs: list[dict[str, Any]] = []
        for number, (samples, width) in enumerate(_SIZES):
            draw = torch.Generator().manual_seed(97 + number)
            pixels = torch.randint(256, (samples, width), dtype=torch.uint8, generator=draw)
            labels = torch.randint(10, (samples,), generator=draw)
            epochs.append(_epoch(trace, space, gpu, pixels, labels))
            trace.facts["epochs"] = epochs


def _epoch(trace: Trace, space: dict[str, Any], gpu: Any, pixels: Any, labels: Any) -> dict[str, Any]:
    import torch

    from gpulesson.exercises.watch import counters
    from gpulesson.practice.events import TO_DEVICE

    device, samples = torch.device("cuda"), len(pixels)
    own = pixels.clone(), labels.clone()  # what comes back is compared with what nobody else has
    make = calls.find(trace, space, "Pictures", *own)
    dataset = calls.call(trace, space, f"Pictures with {samples} images", make, *own)
    feed = calls.find(trace, space, "feed", dataset, device)
    doing = f"feed with {samples} images"
    gpu.clear_events()
    with counters.asked(dataset) as seen, counters.Work() as work:
        epoch = calls.call(trace, space, doing, feed, dataset, device)
        if epoch is None or isinstance(epoch, torch.Tensor | tuple):
            arrived, content = [], _not_an_epoch(epoch)
        else:
            arrived = calls.call(trace, space, doing, lambda: list(islice(epoch, 4 * samples)))
            content = None
    copies = [event for event in gpu.events if event.kind == TO_DEVICE]
    facts: dict[str, Any] = {
        "samples": samples,
        "pixels": pixels.shape[1],
        "batches": len(arrived),
        "calls": seen.calls,
        "operators": sum(work.operators.values()),
        "bytes_copied": sum(event.nbytes for event in copies),
        "bytes_enough": pixels.nbytes + labels.nbytes,
        "copies": sum(event.count for event in copies),
        "largest_copy": max(copies, key=lambda event: event.nbytes).line if copies else 0,
        "most_copies": max(copies, key=lambda event: event.count).line if copies else 0,
    }
    content = content or _content(arrived, pixels, labels)
    return facts | {"content": None if content is None else [content[0].kind, content[1]]}


def _not_an_epoch(value: Any) -> tuple[Diagnosis, str]:
    if value is None:
        return NOTHING_FED, "feed returned nothing (None); expected one batch after the other."
    return RETURNED_TOO_EARLY, "feed returned one batch and ended; expected one batch after the other."


def _content(arrived: list[Any], pixels: Any, labels: Any) -> tuple[Diagnosis, str] | None:
    """Say what is wrong with the batches that arrived; None if they are right."""
    import torch

    if not arrived:
        return NOTHING_FED, "No batch arrived."
    for batch in arrived:
        two = isinstance(batch, tuple | list) and len(batch) == 2
        if not two or not all(isinstance(part, torch.Tensor) for part in batch):
            found = f"a {type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else batch
            return NO_PAIRS, f"A batch was {str(found)[:60]}; expected two tensors."
    if arrived[0][0].dim() == 1 and arrived[0][1].dim() == 2:
        return NO_PAIRS, "The labels came first; expected the images, then the labels."
    for part, name in ((0, "images"), (1, "labels")):
        if any(batch[part].device.type != "cuda" for batch in arrived):
            return STILL_ON_HOST, f"The {name} that arrived are on the CPU; expected them on the device."
    width, shape = pixels.shape[1], list(arrived[0][0].shape)
    if len(shape) == 3 and shape[0] == 1:
        return EXTRA_DIMENSION, f"A batch has the shape {shape}; expected {[shape[1], width]}."
    inputs = [batch[0].detach().cpu() for batch in arrived]
    targets = [batch[1].detach().cpu() for batch in arrived]
    return _compared(inputs, targets, pixels, labels)


def _compared(
    inputs: list[Any], targets: list[Any], pixels: Any, labels: Any
) -> tuple[Diagnosis, str] | None:
    import torch

    count, given = sum(map(len, inputs)), len(pixels)
    if any(part.shape[1:] != pixels.shape[1:] for part in inputs):
        return (
            OTHER_IMAGES,
            f"An image has the shape {list(inputs[0].shape[1:])}; expected {[pixels.shape[1]]}.",
        )
    if count != given:
        what = f"{count} images arrived; expected {given}."
        if count > given or count == 0:
            return OTHER_DATA, what
        if len(inputs) == 1 < given // _BATCH:
            return RETURNED_TOO_EARLY, what
        return SAMPLES_MISSING, what
    images, found = torch.cat(inputs), torch.cat(targets)
    if not images.is_floating_point():
        return BYTES_ARRIVED, f"The images that arrived are {images.dtype}; expected torch.float32."
    if images.dtype != torch.float32:
        return OTHER_FLOATS, f"The images that arrived are {images.dtype}; expected torch.float32."
    right = pixels.float() / 255
    if not _close(images, right):
        top = images.max().item()
        if _close(images, pixels.float()):
            return NOT_SCALED, f"The largest value that arrived is {top:g}; expected 1."
        if _close(images, right / 255):
            return SCALED_TWICE, f"The largest value that arrived is {top:.4f}; expected 1."
        if torch.allclose(_sorted(images), _sorted(right), atol=1e-6):
            return ORDER_CHANGED, "The images came in another order; expected that of the dataset."
        if _close(images, (pixels // 255).float()):
            return DIVIDED_AS_INTEGERS, "Nearly all values that arrived are 0; expected numbers from 0 to 1."
        low, here = images.min().item(), f"from {images.min().item():.3g} to {top:.3g}"
        if top > low and torch.allclose((images - low) / (top - low), right, atol=1e-3):
            what = f"The images that arrived have values {here}; expected 0 to 1."
            return SCALED_OTHERWISE, what
        what = "The images that arrived are not those of the dataset"
        return OTHER_IMAGES, f"{what}: their values go {here}, those of the dataset from 0 to 1."
    if found.shape != labels.shape or not torch.equal(found.to(labels.dtype), labels):
        return OTHER_LABELS, "The images are right, but some have the label of another image."
    if found.dtype != labels.dtype:
        return OTHER_LABELS, f"The labels that arrived are {found.dtype}; expected {labels.dtype}."
    sizes = [len(part) for part in inputs]
    expected = [min(_BATCH, given - start) for start in range(0, given, _BATCH)]
    if sizes != expected:
        return OTHER_BATCHES, f"The batches have the sizes {sizes[:6]}; expected {expected}."
    return None


def _close(found: Any, expected: Any) -> bool:
    import torch

    return torch.allclose(found, expected, rtol=1e-5, atol=1e-7)


def _sorted(images: Any) -> Any:
    """Return the rows in an order of their own, whatever the order in which they came."""
    return images[(images.double() @ images.new_tensor(range(images.shape[1])).double().sin()).argsort()]


EXERCISE = Exercise(
    name="09_fewer_calls",
    lesson="Feeding the GPU",
    title="Fewer calls, fewer bytes",
    demand="the same batches, with fewer calls and bytes",
    difficulty="medium",
    hint_for={"extra-dimension": 2, "floats-copied": 3, "bytes-arrived": 3, "scaled-twice": 3},
    hints=(
        "pixels[index] also takes a list of numbers.",
        "A BatchSampler yields such lists. DataLoader(…, sampler=batches, batch_size=None) uses it.",
        "Move .float() / 255 out of __getitem__, to after inputs.to(device).",
    ),
    rules=(called.calls, feeding),
    probe=probe,
    function="feed",
)
