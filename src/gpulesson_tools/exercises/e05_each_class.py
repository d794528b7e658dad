"""Exercise 5: the accuracy of each class: from a confusion matrix, put in order, and counted over batches."""

import torch
from torch import nn

from gpulesson_tools.exercises.contract import Task, kind_of, number_of
from gpulesson_tools.exercises.training import classes, observe_test, testing
from gpulesson_tools.exercises.words import COMMON

CLASSES, EMPTY = 4, 2  # one that has no images
DEVICE, NAMES = torch.device("cuda"), {"a str": "name", "None": "None"}


def listed(value):
    """Return what is in a list, and what a message calls it."""
    each = list(value) if hasattr(value, "__len__") and getattr(value, "ndim", 1) else []
    each = [] if isinstance(value, str) else each
    kinds = sorted({f"{NAMES.get(kind_of(one), kind_of(one).partition(' on ')[0][2:])}s" for one in each})
    if kinds and not torch.is_tensor(value):
        return each, f"a list of {' and '.join(kinds)}"
    shape = f" of shape {list(value.shape)}" if getattr(value, "ndim", 1) > 1 else ""
    return each, "a name" if isinstance(value, str) else kind_of(value) + shape


def note(facts, value):
    """Note a list of accuracies."""
    each, facts["kind"] = listed(value)
    facts["count"] = len(each)
    number = number_of(each.pop(EMPTY)) if len(each) > EMPTY else "not there"
    facts["empty"] = str(round(number, 4)) if isinstance(number, float) else str(number)
    facts["value"] = [number_of(one) for one in each] or number_of(value)


def per_class(confusion, *, over="rows", divided="exactly", scale="share", empty="nan", returns="list"):
    rights, everything, found = confusion.diagonal().tolist(), confusion.sum(), []
    rows, columns = confusion.sum(dim=1), confusion.sum(dim=0)
    sums = {"rows": rows, "columns": columns, "all": everything.expand(len(rows))}
    sums["none"] = torch.ones_like(rows)
    for right, images, own in zip(rights, sums[over].tolist(), rows.tolist(), strict=True):
        if own or empty == "error" or over == "none":
            share = right // images if divided == "whole" and images else right / images
            found.append(share * (100 if scale == "percent" else 1))
        elif empty != "left out":
            found.append(0.0 if empty == "0" else float("nan"))
    one = sum(rights) / everything.item() * (100 if scale == "percent" else 1)
    tensor = torch.tensor(found)
    return {"list": found, "tensor": tensor, "tensors": list(tensor), "one": one}.get(returns)


def observe_per_class(function, facts):
    confusion = torch.tensor([[30, 8, 0, 2], [5, 12, 0, 20], [0, 0, 0, 0], [0, 3, 0, 50]])
    before = confusion.clone()
    value = function(confusion)
    facts["kept"] = torch.equal(before, confusion)
    note(facts, value)


def hardest(accuracies, class_names, *, order="hardest", kept="yes", returns="names"):
    pairs = list(zip(accuracies, class_names, strict=True))
    if order != "as they are":
        pairs.sort(key=lambda pair: pair[order == "names"], reverse=order == "best")
    if kept == "no":
        class_names.sort()
    return pairs if returns == "pairs" else [name for _, name in pairs]


def observe_hardest(function, facts):
    given = [0.75, 0.4, 0.9, 0.55], ["shirt", "coat", "dress", "bag"]
    copies = [list(each) for each in given]
    value = function(*copies)
    each, facts["kind"] = listed(value)
    if facts["kind"] == "a list of tuples":
        each = [name for pair in each for name in pair if isinstance(name, str)]
    facts["kept"], facts["value"] = copies == list(given), each or value


def class_accuracies(
    model, batches, number_of_classes, device,
    *, feed="both", test_mode="eval", graph="no", dim="1", counts="each", parts="all", mean="images",
    **inner,
):  # fmt: skip
    confusion, of_batches = torch.zeros(number_of_classes, number_of_classes), []
    for images, labels in batches:
        images = images if feed == "stays" else images.to(device)
        labels = labels if feed in ("stays", "labels stay") else labels.to(device)
        with testing(model, test_mode=test_mode, graph=graph):
            predicted = classes(model(images), dim=dim)
        _ = predicted == labels
        one, places = torch.zeros_like(confusion), (labels.cpu(), predicted.cpu())
        if counts == "once":
            one[places] += 1
        else:
            one.index_put_(places, torch.ones(len(labels)), accumulate=True)
        of_batches.append(one)
        if parts == "first":
            break
    if mean == "batches" and inner.get("returns") != "nothing":
        found = torch.stack([torch.as_tensor(per_class(one, **inner)) for one in of_batches]).mean(dim=0)
        return found if inner.get("returns") == "tensor" else found.tolist()
    return per_class(of_batches[-1] if parts == "last" else sum(of_batches), **inner)


def observe_class_accuracies(function, facts):
    torch.manual_seed(10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, CLASSES))
    model[-1].bias.data[EMPTY] = -9  # never an answer
    model, images = model.to(DEVICE), torch.randn(40, 1, 4, 4)
    labels = torch.tensor([0, 1, 3])[torch.arange(40).remainder(7).remainder(3)]
    batches = list(zip(images.split(24), labels.split(24), strict=True))
    value, _ = observe_test(model, lambda: function(model, batches, CLASSES, DEVICE), facts)
    note(facts, value)


def differs(found, expected):
    """Say both lists in a few digits."""
    lists = [each if isinstance(each, list) else [each] for each in (found, expected)]
    texts = [", ".join(str(one and round(one, 3)) for one in each) for each in lists]
    return f"the accuracies are {texts[0]}, expected {texts[1]} (without that of the empty class)."


WORDS = {
    "kept": "what the function was given has changed.",
    "count": "the number of accuracies",
    "empty": "what is returned for the class without images",
    "value": differs,
    "rows": "the number of images that the model saw",
}
OWN = COMMON | {
    "over=columns": """Each class was divided by the images that the model took for this class, rightly or
        not. In the table, a row is for a true class, and a column for an answer.
        Fix: Divide by the images that truly are of the class: in the table, the sum of its row.""",
    "over=all": """Each class was divided by the number of all images.
        Fix: Divide by the images of the class itself: the sum of its row.""",
    "over=none": """The right answers of each class are returned as they are, and not divided.
        Fix: Divide them by the images of the class: the sum of its row.""",
    "divided=whole": """// divides whole numbers, and drops what comes after the point: each share below 1
        becomes 0.
        Fix: Divide with /.""",
    "empty=0": """A class without images got 0, as if all of its images had been wrong.
        Fix: There is nothing to divide by, so there is no accuracy: return nan for it.""",
    "empty=error": """One class has no images, and Python does not divide by zero.
        Fix: Look at the number of images first, and take nan if it is 0. A division of tensors gives nan.""",
    "empty=left out": """The class without images is missing, so the numbers after it stand beside the wrong
        names.
        Fix: Have a number for each class, in the order of the classes: nan for this one.""",
    "returns=one": """That is one accuracy for all classes together.
        Fix: Do not add up over the classes: divide each number of the diagonal by its row's sum.""",
    "returns=tensor, tensors": """The accuracies are tensors, and not numbers in a list.
        Fix: Make a list of numbers of the tensor.""",
    "counts=once": """With += on many places at once, a place that comes twice is counted once.
        Fix: Count in a loop over the pairs, or by bincount.""",
    "parts=first": """It ended after the first batch.
        Fix: Return after the loop: the return has the indent of `for`.""",
    "parts=last": """The counts started over in each batch, so only the last batch was counted.
        Fix: Make the counts before the loop over the batches.""",
}

OF_HARDEST = {
    "order=as they are, best, names": """The names are not in the order of the accuracies, the lowest first.
        Fix: Sort pairs of a number and its name, the number first, without reverse.""",
    "kept=no": """A list that the function was given has been changed, and the caller still needs it.
        Fix: Leave both lists alone: sorted() makes a new one; sort(), pop() and remove() change the list.""",
    "returns=pairs": """The pairs themselves are returned, and not the names alone.
        Fix: Take the name out of each pair.""",
}

TASKS = (
    Task(
        does="returns the accuracy of each class",
        reference=per_class,
        observe=observe_per_class,
        begin="The diagonal has the right answers of each class, and the sum of a row has all of its images.",
        words=WORDS,
        gpu=False,
        table=OWN,
        only="over; divided; scale; empty; returns=tensor; returns=tensors; returns=one",
    ),
    Task(
        does="returns the names of the classes, the hardest first",
        reference=hardest,
        observe=observe_hardest,
        begin="Make pairs of a number and its name with zip(), and sort them.",
        words=WORDS | {"value": "the list"},
        derived=frozenset(),
        gpu=False,
        table=OF_HARDEST,
    ),
    Task(
        does="counts over all batches, and returns the accuracy of each class",
        reference=class_accuracies,
        observe=observe_class_accuracies,
        begin="Make a matrix of zeros, count each image of each batch in it, and call per_class().",
        words=WORDS,
        table=OWN,
        only="feed=stays; feed=labels stay; test_mode; graph; dim=0; counts; parts; mean=batches; over; "
        "scale; empty; returns=one; returns=tensor; returns=nothing",
    ),
)
