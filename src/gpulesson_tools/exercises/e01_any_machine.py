"""Exercise 1: a device for every machine, and a product that is computed there."""

import contextlib
from functools import partial
from unittest.mock import MagicMock, patch

import torch

from gpulesson_tools.exercises.contract import Task, kind_of
from gpulesson_tools.exercises.words import COMMON, ELSE, works
from practice_gpu import practice_gpu

Asked = type("function", (MagicMock,), {})  # it knows whether it was taken for its answer


@contextlib.contextmanager
def machine(gpus):
    """Act as a machine with this many GPUs, whose PyTorch was built for CUDA."""
    asked = {"is_available": Asked(return_value=gpus > 0), "device_count": Asked(return_value=gpus)}

    def accelerator(check_available=False):
        return torch.device("cuda") if gpus or not check_available else None

    with (
        practice_gpu(force=True) if gpus else contextlib.nullcontext(),
        patch.multiple(torch.cuda, **asked),
        patch.multiple(torch.accelerator, **asked, current_accelerator=accelerator),
        patch.object(torch.backends.mps, "is_available", lambda: False),
    ):
        yield asked


def pick_device(*, looks="right"):
    there = torch.cuda.is_available if looks == "no call" else torch.cuda.is_available()
    found = {"always": True, "never": False, "turned": not there}.get(looks, there)
    return torch.device("cuda" if found else "cpu")


def observe_pick_device(function, facts):
    facts["not called"] = []
    for gpus, name in enumerate(("no GPU", "a GPU")):
        with machine(gpus) as asked:
            value = function()
        facts["not called"] = [name for name, each in asked.items() if each.__bool__.called]
        facts[name] = kind_of(value)
        if isinstance(value, str) and not works(partial(torch.device, value)):
            facts[name] = "a text that is the name of no device"
        elif isinstance(value, str | torch.device):
            device = torch.device(value)
            facts[name] = str(device) if device.index else device.type


def scores(
    count, device,
    *, made="there", asked="device", rows="asked", back="no", order="right", returns="scores", **by,
):  # fmt: skip
    count = 64 if rows == "fixed" else count
    device, made = device if asked == "device" else "cuda", "there" if returns == "nothing" else made
    by = {"weights": "randn", "images": "rand"} | by
    make_weights, make_images = (getattr(torch, by[name]) for name in ("weights", "images"))
    weights = make_weights(10, 784, device=device if made in ("there", "weights") else "cpu")
    images = make_images(count, 784, device=device if made in ("there", "images") else "cpu")
    if made == "copied":
        weights, images = weights.to(device), images.to(device)
    result = weights @ images.T if order == "turned" else images @ weights.T
    if returns in ("shares", "classes"):
        result = result.softmax(1) if returns == "shares" else result.argmax(1)
    result = result.to(device) if made == "result" else result
    return None if returns == "nothing" else result.cpu() if back == "yes" else result


def call(function, count, device, facts, name):
    """Call it, and note what was on the GPU. Return the result, and whether anything was copied there."""
    torch.manual_seed(0)
    with practice_gpu(force=True) as gpu:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gpu.clear_events()
        try:
            value = function(count, torch.device(device))
        finally:
            torch.set_default_device(None)
            peak = torch.cuda.max_memory_allocated() - before
            sizes = {"both": count + 10, "images": count, "weights": 10, "neither": 0}
            facts[name] = next(what for what, rows in sizes.items() if peak >= rows * 784 * 4)
        copied = any(each.kind == "host to device" and each.nbytes >= 320 for each in gpu.events)
    return value.detach() if isinstance(value, torch.Tensor) else value, copied


@contextlib.contextmanager
def noted(*functions):
    """Collect what these functions of torch return."""
    made = []

    def noting(function):
        return lambda *args, **kwargs: [made.append(value := function(*args, **kwargs)), value][1]

    with patch.multiple(torch, **{each.__name__: noting(each) for each in functions}):
        yield made


def is_product(value, made):
    """Return whether it is one of the images and the weights, as far as these were noted."""
    made = [each.detach().float().cpu() for each in made if each.ndim == 2]
    both = [*made, *(each.T for each in made)]
    images, weights = ([m for m in both if m.shape == shape] for shape in ((len(value), 784), (784, 10)))
    pairs = [(i, w) for i in images for w in weights]
    return not pairs or any(torch.allclose(value.float(), i @ w, rtol=0.02, atol=1) for i, w in pairs)


def observe_scores(function, facts):
    facts["kind"] = ""  # the first cause: a product is missing, because nothing is returned
    value, facts["copied"] = call(function, 64, "cuda", facts, "on the GPU")
    facts["kind"] = kind_of(value)
    with noted(torch.rand, torch.randn) as made:
        value, _ = call(function, 400, "cpu", facts, "asked")
    facts["shape"] = list(getattr(value, "shape", ()))
    facts |= {"values": "scores", "images": "rand", "weights": "randn", "product": True}
    if not isinstance(value, torch.Tensor):
        return
    if not value.is_floating_point():
        facts["values"] = "classes"
    elif (value == 0).float().mean() > 0.2 and value.min() == 0 < value.max():
        facts["values"] = "their positive part: the negative ones have become 0"
    elif value.ndim == 2 and any((value.sum(dim) - 1).abs().max() < 1e-3 for dim in (0, 1)):
        facts["values"] = "shares"
    elif value.ndim == 2 and 10 in value.shape:
        # Images around 0.5 move the mean of a class away from 0; images around 0 do not.
        value = value.cpu() if value.shape[1] == 10 else value.cpu().T
        facts["product"] = is_product(value, made)
        if not facts["product"]:
            return  # so its numbers say nothing about the images and the weights
        level, spread = value.mean(0), value.std(0)
        facts["images"] = "rand" if (level / spread).square().mean() > 0.06 else "randn"
        size = spread.mean().item() / 28 * (12**0.5 if facts["images"] == "rand" else 1)
        facts["weights"] = "randn" if 0.9 < size < 1.1 else "rand" if 0.52 < size < 0.64 else "other"


LOOK = "Fix: Ask PyTorch whether there is a GPU. Return the GPU if there is one, and the CPU if not."
PASS = "Fix: Pass the device that is given to each call that makes a tensor."
PRODUCT = "Fix: Return the product as it is, with the images first: each image is a row of it."


SPREAD = "the scores are not spread as those of torch.rand images and torch.randn weights."
OF_PICK_DEVICE = {
    "looks=no call": f"""A function without its brackets () is the function itself, and not its answer. It
        always counts as true. {LOOK}""",
    "looks=always": f"""It takes a GPU without looking whether there is one (current_accelerator looks if
        check_available=True). So the script stops on a machine without. {LOOK}""",
    "looks=turned": f"It is the wrong way round: it takes the GPU where there is none. {LOOK}",
    "looks=never": f"It takes the CPU, even where there is a GPU. One is enough. {LOOK}",
}

OF_SCORES = COMMON | {
    "made=weights, images": f"""The weights are on one device, and the images on another. Two devices do
        not mix. {PASS}""",
    "made=cpu, result": f"""Images and weights are made on the CPU, so that is where PyTorch computes.
        {PASS}""",
    "made=copied": f"""Images or weights were made on the CPU, and copied to the GPU. A copy takes time,
        and none is needed. {PASS}""",
    "rows=fixed": """The number of images is always the same, whatever number is asked for.
        Fix: Make as many images as `count` says.""",
    "back=yes": f"""The scores were brought back to the CPU. A copy takes time, and the next step needs
        them on the GPU. {PRODUCT}""",
    "order=turned": f"The scores have their rows and columns exchanged. {PRODUCT}",
    "images=randn": """The images were made with torch.randn. It makes negative numbers, too, and a pixel is
        between 0 and 1.
        Fix: Make the images with torch.rand.""",
    "weights=rand": """The weights were made with torch.rand, so none is negative. A weight has to be able to
        lower a score, too.
        Fix: Make the weights with torch.randn.""",
    "returns=shares, classes": f"""It returns shares that add up to 1, or the number of a class for each
        image. The scores are the product itself. {PRODUCT}""",
}

TASKS = (
    Task(
        does="returns the device to compute on, on every machine",
        reference=pick_device,
        observe=observe_pick_device,
        begin="Ask PyTorch whether there is a CUDA GPU. Return one device or the other.",
        gpu=False,
        words={
            "not called": lambda found, _: f"{' and '.join(found)} was not called.",
            "no GPU": "on a machine without a GPU, what is returned",
            "a GPU": "on a machine with a GPU, what is returned",
        },
        table=OF_PICK_DEVICE,
    ),
    Task(
        does="makes images and weights on a device, and multiplies them there",
        reference=scores,
        observe=observe_scores,
        derived=frozenset(),  # these weights are not a result
        begin="Make weights and images, each on the device. Return their matrix product.",
        words={
            "on the GPU": {
                "neither": "neither the images nor the weights were ever on the GPU.",
                "weights": "the images were never on the GPU, or not all at once.",
                ELSE: "the weights were never on the GPU.",
            },
            "copied": "numbers were copied from the CPU to the GPU.",
            "kind": "what is returned, with the GPU as the device,",
            "shape": "the shape of the scores, for 400 images,",
            "asked": "it used the GPU also when it was called with the CPU.",
            "values": "what is returned are not scores, but {found}.",
            "product": "the scores are not the product of the images and the transposed weights.",
            "images": SPREAD,
            "weights": SPREAD,
        },
        table=OF_SCORES,
        only="made; asked; rows=fixed; back; order; images; weights; returns=shares; returns=classes; "
        "returns=nothing",
    ),
)
