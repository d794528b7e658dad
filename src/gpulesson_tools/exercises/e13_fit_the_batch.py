"""Exercise 13: the gradients of a batch in parts, and a training that takes its steps with them."""

import gc

import torch
from torch import nn

from gpulesson_tools.exercises.contract import Task
from gpulesson_tools.exercises.watch import ModelWatch, keys_of
from gpulesson_tools.exercises.words import COMMON

DEVICE, ROWS, SIZES = torch.device("cuda"), 128, (344, 256)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3))


def make_batches():
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 12, generator=draw), torch.randint(3, (n,), generator=draw)) for n in SIZES]


def accumulate(
    model, loss_fn, inputs, labels, rows,
    *, zero="once", parts="rows", seen="all", own="labels", backward="each", share="rows", retains="no",
    after=None,
):  # fmt: skip
    count = max(1, len(inputs) // rows)
    rows = {"whole": len(inputs), "count": -(-len(inputs) // count)}.get(parts, rows)
    total = torch.zeros(())
    starts = range(0, len(inputs) // rows * rows if seen == "short" else len(inputs), rows)
    share = share if share != "parts" else 1 / len(starts)
    starts = starts[:1] if seen == "first" else starts
    if zero in ("once", "end"):
        model.zero_grad()
    for start in starts:
        some = slice(start, rows if seen == "ends" else start + rows)
        loss = loss_fn(model(inputs[some]), labels if own == "whole" else labels[some])
        known = {"rows": len(labels[some]) / len(labels), "none": 1, "whole": rows / len(labels)}
        counts = known.get(share, share)
        if zero == "part":
            model.zero_grad()
        if backward == "each":
            (loss * counts).backward(retain_graph=retains == "yes")
        if backward == "sum":
            total = total + loss * counts
        if after:
            after()
    if backward == "sum":
        total.backward()
    if backward == "last":
        (loss * counts).backward()
    if zero == "end":
        model.zero_grad()


def train(
    model, optimizer, loss_fn, batches, device, rows,
    *, feed="moved", step="yes", zero="once", looks="no", ends="last", **switches,
):  # fmt: skip
    if feed == "all":
        batches = [(inputs.to(device), labels.to(device)) for inputs, labels in batches]
    for inputs, labels in batches:
        if feed in ("moved", "all"):
            inputs, labels = inputs.to(device), labels.to(device)
        after = optimizer.step if step == "part" else None
        if step == "cut":
            for part in zip(inputs.split(rows), labels.split(rows), strict=True):
                accumulate(model, loss_fn, *part, rows)
                optimizer.step()
        else:
            accumulate(model, loss_fn, inputs, labels, rows, zero=zero, after=after, **switches)
        if zero == "late":
            optimizer.zero_grad()
        if step == "yes":
            optimizer.step()
        if looks == "whole":
            with torch.no_grad():
                model(inputs)
        if ends == "first":
            break
    if step == "end":
        optimizer.step()


def observe_accumulate(function, facts):
    model, loss_fn, (inputs, labels) = make_model(), nn.CrossEntropyLoss(), make_batches()[0]
    loss_fn(model(inputs), labels).backward()
    right, model = [parameter.grad for parameter in model.parameters()], make_model().to(DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    arguments = model, loss_fn, inputs.to(DEVICE), labels.to(DEVICE), ROWS
    observe(model, [(inputs, labels)], facts, 64_000, lambda: function(*arguments))
    found = [parameter.grad for parameter in model.parameters()]
    compare(facts, found, right)
    facts["left"] = any(gradient is not None and gradient.any().item() for gradient in found)
    counts = []  # 22 rows in parts of 4: in 4 parts, each would have more
    model.register_forward_pre_hook(lambda _, given: counts.append(len(given[0])))
    function(model, loss_fn, arguments[2][:22], arguments[3][:22], 4)
    facts["few"] = max(counts, default=0) > 4


def observe_train(function, facts):
    expected, model = make_model(), make_model().to(DEVICE)
    batches, loss_fn = make_batches(), nn.CrossEntropyLoss()
    for inputs, labels in batches:
        gradients = torch.autograd.grad(loss_fn(expected(inputs), labels), [*expected.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(expected.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    arguments = model, optimizer, loss_fn, batches, DEVICE, ROWS
    watch = observe(model, batches, facts, 88_300, lambda: function(*arguments))
    parts = sum(each["graph"] for each in watch.passes)
    names = {parts: "one for each part", len(SIZES): "one for each batch", 0: "none", 1: "one"}
    facts["steps"], facts["idle"] = names.get(watch.steps, str(watch.steps)), watch.idle > 0
    compare(facts, list(model.parameters()), list(expected.parameters()))


def compare(facts, found, right):
    """Note whether the result is right; then it does not matter how the losses were weighted."""
    pairs = [(a.detach().cpu(), b.detach()) for a, b in zip(found, right, strict=True) if a is not None]
    facts["value"] = len(pairs) == len(right) and all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    if facts["value"]:
        facts |= {"shares": "multiplied by its share", "old": False, "thrown": False}


def observe(model, batches, facts, most, call):
    """Call it, and note what can be seen of the parts of each batch, in which memory may rise by `most`."""
    samples = {}
    for number, (inputs, labels) in enumerate(batches):
        pairs = zip(keys_of(inputs), labels.tolist(), strict=True)
        samples |= {key: (number, label) for key, label in pairs}
    watch, came, fresh, held = ModelWatch(model), [], [], []

    def passed(module, inputs, outputs):
        if outputs.requires_grad and (keys := watch.passes[-1]["rows"]):
            labels = torch.tensor([samples.get(key, (0, 0))[1] for key in keys])
            mean = (outputs.detach().cpu().softmax(1) - nn.functional.one_hot(labels, 3)) / len(keys)
            outputs.register_hook(
                lambda grad: came.append((keys, (grad.cpu() * mean).sum() / (mean**2).sum()))
            )

    def back(grad):
        number = samples.get(came[-1][0][0], (0,))[0] if came else 0
        fresh.append((number, last.grad is None or not last.grad.any()))

    *_, last = model.parameters()
    model.register_forward_hook(passed)
    last.register_hook(back)
    model.register_forward_pre_hook(lambda *_: held.append(torch.cuda.memory_allocated()))
    gc.disable()  # what earlier calls have left is not to be freed meanwhile
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        call()
    finally:
        gc.enable()
        watch.close()
    peak = torch.cuda.max_memory_allocated() - before
    graphs = [each for each in watch.passes if each["graph"]]
    rows = sorted(key for each in graphs for key in each["rows"])
    numbers = {samples[key][0] for key in rows if key in samples} or set(range(len(batches)))
    facts["batches"] = len(numbers)
    if rows == sorted(key for key, (number, _) in samples.items() if number in numbers):
        facts["seen"] = "each row once"
    elif len(set(rows)) < len(rows):
        facts["seen"] = "some rows twice"
    else:
        few = "one part of each batch" if len(graphs) <= len(numbers) else "not each row"
        facts["seen"] = few if graphs else "no row"
    facts["empty"] = any(not each["rows"] for each in graphs)
    largest, whole = max((len(each["rows"]) for each in graphs), default=0), len(batches[0][0])
    facts["part"] = "all" if largest >= whole else f"more than {ROWS}" if largest > ROWS else "few enough"
    facts["looked"] = any(len(each["rows"]) > ROWS for each in watch.passes if not each["graph"])
    missed = [not each["backward"] for each in graphs]
    facts["backward"] = "no part" if all(missed) else "some parts" if any(missed) else "each part"
    shares, longest = {}, max((len(keys) for keys, _ in came), default=1)
    for keys, share in came:
        number = len(batches[samples.get(keys[0], (0,))[0]][0])
        shares[share_of(len(keys), number, -(-number // longest), share.item())] = True
    facts["shares"] = " or ".join(filter(None, shares)) or "multiplied by its share"
    firsts = dict(reversed(fresh))
    facts["old"] = not all(firsts.values())
    facts["thrown"] = sum(is_fresh for _, is_fresh in fresh) > sum(firsts.values())
    facts["peak"], facts["ahead"] = peak > most, held[:1] > [before + 32_000]  # of 19,968
    # activations of 16,384, outputs of 1,536
    facts["kept"] = held[1:2] > [first + 12_000 for first in held[:1]]
    return watch


def share_of(count, number, parts, share):
    """Say what was done to the loss of a part; nothing if it is right."""
    if abs(share - count / number) < 5e-4:
        return ""
    if abs(share - 1) < 5e-4:
        return "counted in full"
    if any(abs(share - 1 / some) < 5e-4 for some in range(max(2, parts - 1), parts + 2)):
        return "divided by the number of parts"
    return f"multiplied by {share:.3g}"


WORDS = {
    "seen": "{found} went through the model.",
    "empty": "a part of no rows went through the model.",
    "part": f"{{found}} rows went through the model at a time, where rows={ROWS}.",
    "backward": "backward() was called for {found}.",
    "shares": "the mean loss of a part was {found}, not multiplied by its share of the rows of the batch.",
    "old": "gradients from before were still there at the first backward() of a batch.",
    "thrown": "gradients were reset between two parts.",
    "peak": f"the memory rose further than {ROWS} rows at a time need.",
    "looked": f"more than {ROWS} rows went through the model at a time, where rows={ROWS}.",
    "kept": "at the second part, the activations of the first were still there.",
    "ahead": "at the first part, more than one batch was on the device.",
    "batches": "the number of batches that were trained on",
    "few": (
        "more than 4 rows of 22 went through the model at a time, where rows=4: "
        "that is the number of rows of a part, not the number of parts."
    ),
    "left": "after the call there are no gradients.",
    "value": "the result is not that of the mean loss over all rows of each batch.",
}
PARTS = {
    "parts=whole": """All rows of the batch went through the model at once, and that many do not fit.
        Fix: Cut the batch: take rows of it at a time.""",
    "parts=count": """The batch was cut into too few parts, as if their number had been rounded down, so each
        has more rows.
        Fix: Cut it by the number of rows of a part: the last part may be shorter.""",
    "seen=first": """Only the first part of each batch was used.
        Fix: Let the loop over the parts go on to the end of the batch.""",
    "seen=short": """The last rows were left out, where the number of rows does not divide the batch.
        Fix: Let the last part be shorter.""",
    "seen=ends": """Each part ended at the same row, so only the first had any rows. The mean loss of no rows
        is nan.
        Fix: End each part that many rows after its start.""",
    "own=whole": """A part of the inputs met the labels of the whole batch.
        Fix: Cut the labels in the same way.""",
    "backward=last": """backward() was called for the last part only.
        Fix: Call it inside the loop, for each part.""",
    "backward=sum": """backward() was called once, for the sum of the losses: until then the activations of
        all parts were kept.
        Fix: Call backward() for each part inside the loop. It frees the activations, and adds to the
        gradients.""",
    "retains=yes": """With retain_graph=True, backward() keeps the activations of a part while the next one
        goes through the model.
        Fix: Leave it out: each part has its own graph, which is used once.""",
    "share=none": """The mean loss of each part counted in full, so the gradients are several times too large.
        Fix: Multiply each loss by the part's share of the rows.""",
    "share=parts, whole": """Each part counted as much as the others. The last part is shorter, so its rows
        count too much.
        Fix: Multiply each loss by the share of its own rows.""",
    "zero=never": """backward() adds to the gradients that are there, and those of before were never reset.
        Fix: Reset them once for each batch, before its first part.""",
    "zero=part": """The gradients were reset for each part, so only those of the last part are left.
        Fix: Reset them once for each batch, before the loop over its parts.""",
    "zero=end": """The gradients were reset after the last backward(), so none are left.
        Fix: Reset them once, before the first part.""",
}
OWN = COMMON | PARTS | {
    "feed=all": """All batches were copied to the device before the first step. There is room for one.
        Fix: Copy each batch inside the loop.""",
    "ends=first": """Only the first batch was trained on: the loop ends after it.
        Fix: Let the loop go to its end. Look at the indentation of what ends it.""",
    "step=part, cut": """The optimizer stepped after each part. Several small steps are not one step with the
        whole batch.
        Fix: Give accumulate the whole batch, which it cuts itself, and step once after it.""",
    "step=end": """The optimizer stepped once, after all batches.
        Fix: Step inside the loop over the batches, once for each.""",
    "looks=whole": """The whole batch went through the model at once, besides the parts: at most `rows` rows
        may go at a time.
        Fix: Leave it out. The losses of the parts, each times its share, add up to that of the batch.""",
}  # fmt: skip

TASKS = (
    Task(
        does="collects the gradients of a batch, some rows at a time",
        reference=accumulate,
        observe=observe_accumulate,
        begin="Reset the gradients. Then loop over the parts, and call backward() for the loss of each.",
        words=WORDS,
        table=PARTS,
    ),
    Task(
        does="takes one step for each batch, with the gradients of all its rows",
        reference=train,
        observe=observe_train,
        begin="For each batch: copy it to the device, collect its gradients with accumulate, then step.",
        words=WORDS,
        table=OWN,
        only="feed=stays; feed=all; step; ends; looks; parts; seen; own; backward=last; backward=sum; "
        "retains; share; zero=late; zero=never; zero=part",
    ),
)
