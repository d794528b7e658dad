"""Exercise 9: pixels that become floats on the device, and a feed that asks once for each batch."""

from itertools import islice

import torch
from torch.utils.data import Dataset

from gpulesson_tools.exercises.contract import Task, kind_of
from gpulesson_tools.exercises.words import COMMON, ELSE, works
from practice_gpu import practice_gpu

DEVICE, SIZE = torch.device("cuda"), 20


class Pictures(Dataset):
    """Pictures of 100 pixels from 0 to 200, the two brightest of which tell the number; notes each call."""

    def __init__(self, number):
        draw, numbers = torch.Generator().manual_seed(number), torch.arange(number)
        self._images = torch.randint(99, (number, 100), dtype=torch.uint8, generator=draw)
        self._images[numbers, numbers // 10] = self._images[numbers, 20 + numbers % 10] = 200
        self._labels, self._calls = torch.randint(10, (number,), generator=draw), []

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        index = list(index) if isinstance(index, (range, tuple)) else index
        self._calls.append(self._labels[index].numel())
        return self._images[index], self._labels[index]


def sent_by(call):
    """Return what a call returns, and the bytes that it copies to the device."""
    with practice_gpu(force=True) as gpu:
        gpu.clear_events()
        value = call()
        return value, sum(event.nbytes for event in gpu.events if event.kind == "host to device")


def near(found, pixels):
    return bool(torch.allclose(found.cpu().double(), pixels.double() / 255, atol=1e-5))


def floats(pixels, device, *, sent="bytes", asked="device", scale="255", returns="floats"):
    device = device if asked == "device" else "cuda"
    pixels = pixels.float() if sent == "floats" and scale != "bytes" else pixels
    pixels = pixels.to(device) if sent != "stays" else pixels
    if scale != "bytes":
        divisor = pixels.max() if scale == "max" else {"256": 256, "none": 1}.get(scale, 255)
        pixels = pixels.float() / divisor
    pixels = pixels.floor() if scale == "whole" else pixels
    return None if returns == "nothing" else pixels


def observe_floats(function, facts):
    pixels, _ = Pictures(16)[:]
    value, sent = sent_by(lambda: function(pixels, DEVICE))
    facts["bytes"] = max(1, round(sent / pixels.nbytes))
    facts["kind"] = "nothing, although bytes were copied" if value is None and sent else kind_of(value)
    if isinstance(value, torch.Tensor) and value.numel():
        facts["shape"], facts["dtype"] = list(value.shape), str(value.dtype)
        facts["range"] = [value.min().item(), value.max().item()]
        facts["value"] = value.shape == pixels.shape and near(value, pixels)
    facts["on the CPU"] = on_the_cpu(lambda: function(pixels, torch.device("cpu")))


def on_the_cpu(call):
    """Return whether what is returned, or comes first, is on the CPU, if that was the device."""
    found = []
    if not works(lambda: found.append(call())):
        return False
    value = found[0]
    first = value if torch.is_tensor(value) or value is None else next(iter(value), None)
    parts = first if isinstance(first, (tuple, list)) else [first]
    return not any(part.is_cuda for part in parts if torch.is_tensor(part))


def feed(
    pictures, batch_size, device,
    *, yields="pairs", calls="batch", start="row", last="kept", order="kept", collate="once",
    feed="moved", asked="device", **of_floats,
):  # fmt: skip
    device = device if asked == "device" else "cuda"

    def batches():
        numbers = torch.randperm(len(pictures)) if order == "shuffled" else torch.arange(len(pictures))
        step = batch_size
        every = pictures[numbers] if calls == "all" else ()
        for first in range(0, len(numbers) - (step - 1 if last == "dropped" else 0), step):
            first = first // step if start == "number" else first
            some = numbers[first : first + step]
            if calls == "all":
                pixels, targets = (part[first : first + step] for part in every)
            elif calls == "pictures":
                pixels, targets = map(
                    torch.stack, zip(*[pictures[each] for each in some.tolist()], strict=True)
                )
            else:
                pixels, targets = pictures[some]
            targets = targets if feed == "labels stay" else targets.to(device)
            pair = floats(pixels, device, **of_floats), targets
            yield tuple(part[None] for part in pair) if collate == "again" else pair

    if yields == "nothing":
        return list(batches()) and None
    return {"first": lambda: next(batches()), "list": lambda: list(batches())}.get(yields, batches)()


def observe_feed(function, facts):
    one, other = observed(function, 90), observed(function, 80)
    for name in one | other:
        pair = [each[name] for each in (one, other) if name in each]
        facts[name] = pair[0] if pair[0] == pair[-1] else pair


def observed(function, number):
    """Return the facts of one epoch."""
    pictures, facts = Pictures(number), {}

    def epoch():
        value = function(pictures, SIZE, DEVICE)
        parts = value if isinstance(value, (tuple, list)) else ()
        is_pair = len(parts) == 2 and len({getattr(part, "ndim", 0) for part in parts}) == 2
        facts["kind"] = "nothing" if value is None else "one batch" if is_pair else "batches"
        found = [value] if is_pair or value is None else value
        first = list(islice(found := iter(found), 1))
        if value is not None:
            parts = first[0] if first and isinstance(first[0], (tuple, list)) else first
            sizes = [len(part) for part in parts if torch.is_tensor(part) and part.ndim]
            calls = pictures._calls
            facts["early"] = sum(calls) > 2 * max([SIZE, *sizes]) and calls[:1] != [number]
        return [batch for batch in (*first, *found) if batch is not None]

    batches, sent = sent_by(epoch)
    calls, most = pictures._calls, max(pictures._calls, default=0)
    each = {0: "none", 1: "one call for each picture", number: "one call for all pictures"}
    twice = (
        len(calls) > 1.5 * -(-number // min(most, SIZE)) if 1 < most < number else most == number < sum(calls)
    )
    facts["calls"] = "several" if twice else each.get(most, "one call for each batch")
    facts["bytes"] = max(1, round(sent / 100 / (min(sum(calls), number) or number)))
    pairs = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in batches]
    if not pairs or not all(isinstance(part, torch.Tensor) and part.ndim for pair in pairs for part in pair):
        return facts | {"shapes": [type(part).__name__ for pair in pairs[:1] for part in pair]}
    shapes = [["N" if size not in (1, 100) else str(size) for size in part.shape] for part in pairs[0]]
    facts["shapes"] = " and ".join(f"[{', '.join(shape)}]" for shape in shapes)
    images, *labels = (
        torch.cat([part.cpu().flatten() for part in column]) for column in zip(*pairs, strict=False)
    )
    images = images[: len(images) // 100 * 100].reshape(-1, 100)
    sizes = [pair[0].numel() // 100 for pair in pairs]
    if number % SIZE:
        facts["rows"] = (
            "one batch" if len(pairs) == 1 else "all" if len(images) == number else "another number"
        )
    facts["size"], facts["empty"] = "batch_size" if sizes[0] == SIZE else "another number", 0 in sizes
    for name, part in zip(("images", "labels"), pairs[0], strict=False):
        facts[f"{name} on"], facts[f"{name} type"] = str(part.device), str(part.dtype)
    facts["range"] = [images.min().item(), images.max().item()]
    found = (images[:, :20].argmax(1) * 10 + images[:, 20:30].argmax(1)) % number
    again = len(found) > len(found.unique())
    facts["order"] = "again" if again else "kept" if found.tolist() == sorted(found.tolist()) else "another"
    right = pictures[found]
    facts["paired"] = bool(labels) and torch.equal(labels[0].long(), right[1])
    facts["value"] = near(images, right[0])
    facts["on the CPU"] = on_the_cpu(lambda: function(Pictures(number), SIZE, torch.device("cpu")))
    return facts


WORDS = {
    "bytes": "{found} times the bytes of the pixels were copied to the device.",
    "shape": "the shape",
    "dtype": "the type of the numbers",
    "range": "pixels of 0 to 200 have become {found[0]:.4g} to {found[1]:.4g}, "
    "expected {expected[0]:.4g} to {expected[1]:.4g}.",
    "value": "some pixels are not a 255th of what they were.",
    "calls": {
        "none": "the dataset was not called here. Workers call it elsewhere: leave num_workers out.",
        "several": "the dataset was called more than once for each batch.",
        ELSE: "there was {found}.",
    },
    "early": "all pictures were fetched before the first batch could be used.",
    "shapes": "the shape of a batch",
    "size": "the size of a batch",
    "rows": {"one batch": "one batch came.", ELSE: "{found} of pictures than there are came."},
    "empty": "a batch of no pictures came.",
    "images on": "the device of the images",
    "images type": "the type of the images",
    "labels on": "the device of the labels",
    "labels type": "the type of the labels",
    "order": {"again": "some pictures came again.", ELSE: "the pictures came in another order."},
    "paired": "some pictures came with the label of another one.",
}
OWN = COMMON | {
    "sent=floats": """The pixels became floats on the CPU, so four bytes were copied for each pixel, and not
        one.
        Fix: Send the bytes, and convert them on the device: .to(device, torch.float32) converts first,
        too.""",
    "sent=stays": """The images that come back are on the CPU. They were not copied, or the copy was not kept.
        Fix: Copy the pixels, and go on with what .to(device) returns.""",
    "scale=none, 256, max, whole": """The pixels were not divided by 255: by another number, without the part
        after the point, or not at all.
        Fix: Divide by 255, on the device, with / and not with //.""",
    "scale=bytes": """The images are still bytes on their arrival, and a model computes with floats.
        Fix: Convert them on the device, and divide by 255.""",
    "yields=nothing": """No batch comes out: it returns nothing.
        Fix: Yield each batch inside the loop.""",
    "yields=first": """Only the first batch comes out: return ends the loop.
        Fix: Yield each batch inside the loop, which then goes on.""",
    "yields=list": """All batches of the epoch are made before the first one can be used. That many may not
        fit into the memory.
        Fix: Yield each batch inside the loop, and collect none.""",
    "calls=pictures": """The dataset was asked for each picture by itself. These calls are what takes the
        time.
        Fix: Ask with the numbers of a whole batch, by a BatchSampler with batch_size=None, or by slices.""",
    "calls=all": """The dataset was asked for all pictures at once. That many may not fit into the memory.
        Fix: Ask for one batch after the other, in the loop.""",
    "collate=again": """The sampler gives whole batches, and the loader has made a batch of each of them
        again.
        Fix: Switch that off: batch_size=None takes each list of the sampler as it is.""",
    "start=number": """The batches overlap: each begins one picture after the one before, and not batch_size
        pictures.
        Fix: Count the first picture of a batch in steps of batch_size.""",
    "last=dropped": """The last batch is shorter, and was left out. An epoch has every picture.
        Fix: Keep it: drop_last=False, or let the last slice be shorter.""",
    "order=shuffled": """The pictures came in a random order. This feed is to keep that of the dataset.
        Fix: Take a SequentialSampler, or numbers in their order.""",
}

TASKS = (
    Task(
        does="sends bytes to the device, and makes floats of them there",
        reference=floats,
        observe=observe_floats,
        begin="The pixels travel to the device and become floats. Which first, so that few bytes travel?",
        words=WORDS,
        table=OWN,
        only="sent; scale=none; scale=256; scale=max; scale=whole; scale=bytes; asked; returns=nothing",
    ),
    Task(
        does="yields the batches of one epoch, with one call for each",
        reference=feed,
        observe=observe_feed,
        begin="Choose a way of the lesson: a BatchSampler with batch_size=None, or slices. One call is "
        "pictures[numbers], for all numbers of a batch.",
        words=WORDS,
        table=OWN,
        only="yields; calls; collate; start; last; order; feed=labels stay; sent=floats; sent=stays; asked; "
        "scale=none; scale=max; scale=256; scale=bytes",
    ),
)
