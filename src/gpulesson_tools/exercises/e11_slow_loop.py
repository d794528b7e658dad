"""Exercise 11: a batch that is converted alone, and a loop without what nobody needs."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gpulesson.models import MLP
from gpulesson_tools.exercises.contract import Task, kind_of, number_of
from gpulesson_tools.exercises.training import train_step
from gpulesson_tools.exercises.words import COMMON, ELSE
from practice_gpu import practice_gpu

STEPS, ROWS = 4, 320


class Count(TorchDispatchMode):
    """Counts operators whose result is as large as all images, norms, products, and what Python waits for."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu, self.operators, self.whole, self.norms, self.products = gpu, 0, 0, 0, 0
        self.floats = self.backwards = 0  # floats: numbers that were made of bytes
        self.weights = self.gradients = None
        self.gpu.clear_events()
        self.early = self.reads()

    def reads(self):
        """Return how often Python has waited for a truth value, and for anything else."""
        events = [event for event in self.gpu.events if event.kind != "host to device"]
        asked = sum(event.waits for event in events if event.nbytes == event.count)
        return asked, sum(event.waits for event in events) - asked

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        size = result.numel() if isinstance(result, torch.Tensor) else 0
        self.whole += not func.is_view and size >= ROWS * 784
        self.operators += 1
        if size and result.is_floating_point():
            self.floats += max((each.numel() for each in args if is_bytes(each)), default=0)
        self.norms += name.endswith("norm")
        self.backwards += "backward" in name
        if name in ("mm", "addmm"):
            self.products += 1
            self.weights = args[-1].clone() if self.weights is None else self.weights
            self.early = self.reads()  # those before the last step's end
        return result

    def before_step(self, optimizer, *_):
        weights = [each for group in optimizer.param_groups for each in group["params"]]
        self.gradients = [each.grad.clone() for each in weights if each.grad is not None]


def is_bytes(value):
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8


def make_data():
    """Return images that tell their row by two pixels, a third one is white; and labels."""
    torch.manual_seed(7)
    pixels, rows = torch.randint(256, (ROWS, 784), dtype=torch.uint8), torch.arange(ROWS)
    pixels[:, 0], pixels[:, 1], pixels[:, 2] = rows // 256, rows % 256, 255
    return pixels.cuda(), torch.randint(10, (ROWS,)).cuda()


def batch(
    pixels, labels, step,
    *, convert="rows", scale="255", rows="of the step", returns="both",
):  # fmt: skip
    first = step if rows == "step" else 64 * step
    part = slice(first, first + 64)
    images = pixels.float()[part] if convert == "all" else pixels[part]
    if convert != "no":
        images = images.float() / {"256": 256, "no": 1, "twice": 255 * 255}.get(scale, 255)
    return {"images": images, "nothing": None}.get(returns, (images, labels[part]))


def observe_batch(function, facts):
    pixels, labels = make_data()
    with practice_gpu(force=True) as gpu, Count(gpu) as count:
        value = function(pixels, labels, 3)
    facts["computed"] = count.operators > 0
    facts["converted"] = "all rows" if count.whole else "those of the batch"
    parts = list(value) if isinstance(value, tuple | list) else [value]
    facts["kind"] = "a pair" if len(parts) == 2 and all(map(torch.is_tensor, parts)) else kind_of(value)
    images = next((each for each in parts if torch.is_tensor(each) and each.ndim > 1), None)
    targets = next((each for each in parts if torch.is_tensor(each) and each.ndim == 1), None)
    facts["order"] = "images first" if images is None or parts[0] is images else "labels first"
    if images is None or images.shape[1:].numel() != 784:
        facts["rows"] = None if images is None else f"of shape {list(images.shape)}"
        return
    facts["shape"], images = f"[rows, {str(list(images.shape[1:]))[1:]}", images.flatten(1)
    facts["type"], facts["device"] = str(images.dtype).removeprefix("torch."), images.device.type
    white = images[:, 2].max().item() if len(images) else 0.0
    facts["white"] = round(white, 4)
    rows = [round(256 * a + b) for a, b in (images[:, :2].double() * 255 / (white or 1)).tolist()]
    ends = f"{rows[0]} to {rows[-1]}" if rows else "none"
    facts["rows"] = ends if not rows or rows == list(range(rows[0], rows[-1] + 1)) else f"{len(rows)} others"
    right = labels[[row for row in rows if row < ROWS]].tolist()
    facts["labels"] = "none" if targets is None else "right" if targets.tolist() == right else "others"


def losses(
    pixels, labels, steps,
    *, norms="no", asks="no", calls="once", read="at the end", seed="set", returns="list", convert="rows",
    scale="255", **of_step,
):  # fmt: skip
    if seed == "set":
        torch.manual_seed(1)
    model, kept = MLP(784, 64, 10).to(pixels.device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        for _ in range(2 if calls == "twice" else 1):
            pair = batch(pixels, labels, number, convert=convert, scale=scale)
        how = of_step | {"returns": "tensor"}
        loss = train_step(model, *pair, cross_entropy, optimizer, pixels.device, **how)
        if norms == "yes":
            torch.stack([weights.detach().norm() for weights in model.parameters()]).norm()
        if asks == "yes" and not torch.isfinite(loss):
            break
        kept.append(torch.tensor(loss.item()) if read == "in the loop" else loss)
    if returns == "tensors":
        return kept
    numbers = torch.stack(kept).tolist() if read == "at the end" else [float(each) for each in kept]
    others = {"tensor": torch.stack(kept), "last": numbers[-1], "nothing": None}
    return others.get(returns, numbers)


def observe_losses(function, facts):
    pixels, labels = make_data()
    with practice_gpu(force=True) as gpu, Count(gpu) as count:
        hook = register_optimizer_step_pre_hook(count.before_step)
        try:
            value = function(pixels, labels, STEPS)
        finally:
            hook.remove()
    (asked, read), (_, reads) = count.early, count.reads()
    facts["called"], facts["backward"] = count.products > 0, count.backwards > 0
    twice = count.floats > ROWS * 784
    facts["converted"] = "some rows twice" if twice else "no row twice"
    if count.whole >= STEPS:
        facts["converted"] = "all rows, in each step"
    facts["norms"] = count.norms > 0
    facts["asked"] = asked > 0
    facts["read"] = "in the loop" if read else "one by one" if reads >= STEPS else "at the end"
    several = isinstance(value, list | tuple)
    each = value.flatten().tolist() if torch.is_tensor(value) else value if several else [value]
    each = [] if value is None else each
    facts["seed"] = begins_as_slow(count.weights, each, pixels, labels)
    facts["idle"] = count.gradients is not None and not any(each.any() for each in count.gradients)
    kinds = sorted({"tensors" if torch.is_tensor(one) else "numbers" for one in each})
    kind = "a tensor" if torch.is_tensor(value) else kind_of(value)
    facts["kind"] = f"a list of {' and '.join(kinds)}" if several and kinds else kind
    facts["count"], facts["products"] = len(each), count.products <= 5 * STEPS + 2
    facts["value"] = [number_of(one) for one in each]


def begins_as_slow(weights, each, pixels, labels):
    """Return False if the first product is with other weights than in `slow`, and the first loss another."""
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    first, found = next(model.parameters()).detach(), number_of(each[0]) if each else None
    if weights is None or weights.shape != first.T.shape or torch.equal(weights.cpu().float().T, first):
        return True
    loss = cross_entropy(model(pixels[:64].cpu().float() / 255), labels[:64].cpu()).item()
    return found is not None and abs(found - loss) < 1e-4


def first_other(found, expected):
    """Say which loss is the first that differs."""
    pairs = enumerate(zip(found, expected, strict=False), 1)
    others = ((n, a, b) for n, (a, b) in pairs if a is not None and abs(a - b) > 1e-4)
    number, one, other = next(others, (0, 0.0, 0.0))
    said = f"the loss of step {number} is {one:.4f}, expected {other:.4f}."
    if number == 2:
        said += (
            " The first is right: has the optimizer the learning rate of `slow`, and does it step as there?"
        )
    return said if number else ""


WORDS = {
    "computed": "nothing was computed.",
    "converted": {
        "some rows twice": "some rows were converted twice.",
        ELSE: "more rows were converted than the batch has.",
    },
    "shape": "the shape of the images",
    "order": "the order of the two",
    "rows": "the range of the rows, in step 3,",
    "type": "the type of the images",
    "device": "the device of the images",
    "white": "a white pixel",
    "labels": {"none": "there are no labels.", ELSE: "the labels are of other rows."},
    "called": "the model was not called.",
    "backward": "backward() was never called.",
    "norms": "norms were computed.",
    "asked": "an `if` waited for the device before the last step was done.",
    "read": "numbers were read {found}.",
    "seed": "the first weights are not those of `slow`.",
    "products": "there was more than one forward and one backward pass in a step.",
    "count": "the number of losses",
    "value": first_other,
}
OWN = COMMON | {
    "convert=all": """All images were converted and divided, also those that this step does not use.
        Fix: Take the rows of the batch first, then convert those.""",
    "convert=no": """The images are still bytes from 0 to 255. A model needs floats from 0 to 1.
        Fix: Convert the rows to floats, and divide them by 255.""",
    "scale=no, 256": """The images were not divided by 255, so a white pixel is not 1.
        Fix: Divide them by 255, as `slow` does.""",
    "scale=twice": """The images were divided by 255 twice, so a white pixel is 1/255, and not 1.
        Fix: Divide them once: `batch` does it already.""",
    "rows=step": """The batches overlap: each begins one row after the one before, and not 64 rows.
        Fix: Begin at 64 times the step.""",
    "returns=images": """Only the images were returned.
        Fix: Return the images and their labels.""",
    "calls=twice": """Images were converted more than once: so it is if batch is called twice in a step, once
        for the images and once for the labels.
        Fix: Call it once, and keep both things that it returns.""",
    "norms=yes": """The norms of the gradients were computed in each step, and no loss needs them.
        Fix: Leave them out.""",
    "asks=yes": """In each step an `if` asks for a number on the device, so Python waits until the step is
        done.
        Fix: Leave the question out, or ask once, after the loop.""",
    "read=in the loop": """The loss was read inside the loop. There Python waits for the device, each time.
        Fix: Keep the loss as it is on the device, and read all of them after the loop.""",
    "read=one by one": """The losses were read after the loop, but one by one. Each read is a copy.
        Fix: Make one tensor of them, and read that.""",
    "seed=none": """The model began with other weights than in `slow`, so all the losses are others.
        Fix: Set the same seed before you make the model.""",
    "returns=tensors, tensor": """The losses are tensors, and not floats in a list.
        Fix: Read them together, at the end: stack them, and make a list of that.""",
}

TASKS = (
    Task(
        does="returns the images and labels of a step, and converts no other rows",
        reference=batch,
        observe=observe_batch,
        begin="Take the rows of this step, of the pixels and of the labels. Then convert those pixels.",
        words=WORDS,
        table=OWN,
        only="convert; scale=no; scale=256; rows=step; returns=images; returns=nothing",
    ),
    Task(
        does="trains as `slow` does, with less work, and returns the losses",
        reference=losses,
        observe=observe_losses,
        begin="Copy the loop of `slow`. Then ask of each line: do the losses need it, and in each step?",
        words=WORDS,
        table=OWN,
        only="convert=all; calls; norms; asks; read; seed; zero; backward; step; scale=no; scale=twice; "
        "returns=tensors; returns=tensor; returns=last; returns=nothing",
    ),
)
