"""Exercise 10: train and evaluate, and keep nothing that takes memory."""

import weakref
from contextlib import closing
from functools import partial

import torch
from torch import nn

from gpulesson.exercises.contract import Task, kind_of, number_of
from gpulesson.exercises.references import learn, testing
from gpulesson.exercises.watch import Watch
from gpulesson.exercises.words import COMMON, mistakes

WIDTH, ROWS, BLOCK = 64, 32, 512


class Loss(nn.Module):
    """A loss that notes its rows, and how many of its earlier graphs and inputs are still there."""

    def __init__(self):
        super().__init__()
        self.rows, self.graphs, self.outputs, self.most = [], [], [], [0, 0]

    def forward(self, outputs, labels):
        living = [sum(each() is not None for each in refs) for refs in (self.graphs, self.outputs)]
        self.most = [max(pair) for pair in zip(self.most, living, strict=True)]
        loss = nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1)
        if loss.grad_fn is not None:
            loss.grad_fn.metadata["living"] = living = set()  # as long as the graph is there
            self.graphs.append(weakref.ref(living))
        self.outputs.append(weakref.ref(outputs))
        self.rows.append(len(labels))
        return loss


def make(hidden, rows, training):
    """Return a model on the GPU with so many hidden layers, in this mode, and batches with so many rows."""
    torch.manual_seed(0)
    layers = [layer for _ in range(hidden) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))
    for parameter in model.parameters():
        parameter.data *= 2  # or the losses of all batches are nearly the same
    inputs, labels = torch.randn(sum(rows), WIDTH), torch.arange(sum(rows)) % 7
    batches = list(zip(inputs.cuda().split(rows), labels.cuda().split(rows), strict=True))
    return model.cuda().train(training), batches


def keep_outside(model, losses):
    """Keep losses where they stay after the call."""
    model.kept = [*getattr(model, "kept", ()), *losses]


def asked_for(value):
    """Say what a value is; a number and a tensor without a graph are both what was asked for."""
    kind = kind_of(value)
    single = number_of(value) is not None and not getattr(value, "requires_grad", False)
    return "a number, or a tensor without a graph" if single else kind


def train(
    model, optimizer, loss_fn, batches,
    *, train_mode="train", keep="nothing", mean="right", returns="number", **of_learning,
):  # fmt: skip
    if train_mode == "train":
        model.train()
    losses, rows = [], 0
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        learn(loss, optimizer, **of_learning)
        with_graph = keep in ("graphs", "graphs outside") or returns == "graph"
        losses.append(loss if with_graph else loss.detach())
        rows += len(labels)
    if "outside" in keep:
        keep_outside(model, losses)
    total, count = sum(losses), len(losses)
    result = {"right": total / count, "sum": total, "mixed": total / rows, "last": losses[-1]}[mean]
    return {"graph": result, "list": losses, "nothing": None}.get(returns, result.detach())


def observe_train(function, facts):
    (model, batches), loss_fn = make(0, [ROWS] * 3, training=False), Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with closing(Watch(model)) as watch:
        value = [number_of(function(model, optimizer, loss_fn, batches))]
        before = torch.cuda.memory_allocated()
        result = function(model, optimizer, loss_fn, batches)
        value, kind = [*value, number_of(result)], asked_for(result)
        del result
        held = torch.cuda.memory_allocated() - before
    facts["train modes"] = sorted({each["training"] for each in watch.passes})
    facts["backwards"] = [each["backward"] for each in watch.passes]
    facts["losses"] = loss_fn.rows
    facts["fresh"], facts["steps"] = watch.stale == 0, watch.steps
    facts["idle"] = watch.idle > 0 and any(facts["backwards"])
    facts["graphs"] = loss_fn.most[0] > 1 and "graph" not in kind.partition(" on ")[2]
    facts["outputs"], facts["held"] = loss_fn.most[1] > 1, held > 2 * BLOCK
    facts["kind"], facts["weights"], facts["value"] = kind, watch.weights(), value


def evaluate(
    model, loss_fn, batches,
    *, test_mode="eval", graph="no", rows="all", keep="nothing", mean="rows", returns="number",
):  # fmt: skip
    if keep == "batches":
        batches = [tuple(map(torch.cat, zip(*batches, strict=True)))]
    batches = batches[:1] if rows == "first" else batches
    if rows == "full":
        batches = [batch for batch in batches if len(batch[1]) == len(batches[0][1])]
    losses, counts, kept, targets = [], [], [], []
    with testing(model, test_mode=test_mode, graph="yes" if returns == "graph" else graph):
        for inputs, labels in batches:
            outputs = model(inputs)
            kept += [outputs] if keep in ("outputs", "joined") else []
            targets.append(labels)
            if keep != "joined":
                losses.append(loss_fn(outputs, labels))
                counts.append(len(labels))
        if keep == "joined":
            losses, counts = [loss_fn(torch.cat(kept), torch.cat(targets))], [sum(map(len, targets))]
    if keep == "outside":
        keep_outside(model, losses)
    plain, weighted = sum(losses), sum(loss * n for loss, n in zip(losses, counts, strict=True))
    means = {
        "rows": weighted / sum(counts),
        "batches": plain / len(losses),
        "sum": plain,
        "weighted": weighted,
    }
    means |= {"mixed": plain / sum(counts), "too large": weighted / len(losses), "last": losses[-1]}
    result = means[mean]
    return {"graph": result, "list": losses, "nothing": None}.get(returns, result.detach())


def observe_evaluate(function, facts):
    (model, batches), loss_fn = make(0, [ROWS, ROWS, ROWS, 20], training=True), Loss()
    with closing(Watch(model)) as watch:
        value = function(model, loss_fn, batches)
    facts |= watch.of_a_test()
    facts["backwards"] = len(watch.training())
    facts["passes"] = [len(each["rows"]) for each in watch.passes]
    facts["losses"], facts["outputs"] = loss_fn.rows, loss_fn.most[1] > 1
    model, batches = make(hidden := 5, [ROWS] * 5, training=False)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function(model, Loss(), batches)
    model.zero_grad()
    facts["peak"] = torch.cuda.max_memory_allocated() - before > (hidden - 1) * ROWS * WIDTH * 4
    facts["held"] = torch.cuda.memory_allocated() - before > 2 * BLOCK
    facts["kind"], facts["value"] = asked_for(value), number_of(value)


WORDS = {
    "graphs": "the graphs of several losses were there at once.",
    "outputs": "the outputs of several batches were there at once.",
    "held": "more than the result stays in memory after the call.",
    "peak": "at most, it needs more memory than one batch needs without a graph.",
    "losses": "the number of rows, of each call of the loss,",
    "passes": "the number of rows, of each call of the model,",
    "backwards": "the number of backward passes",
    "graph": "the outputs had a graph.",
    "value": "the mean loss",
}

OWN = mistakes("""
keep=graphs
The losses were kept with their graphs until the end of the loop.
Fix: Detach each loss, or fetch its number, before it is added up or put into a list.
    losses.append(loss.detach())

keep=outside
Each call leaves tensors behind that are still there after it, so memory grows from call to call.
Fix: Make the list inside the function, and return the mean alone.
    losses = []

keep=graphs outside
The losses were kept with their graphs where they stay after the call: memory grows from call to call.
Fix: Make the list inside the function, and detach each loss before it is put there.
    losses = []
    losses.append(loss.detach())

returns=graph
The result was returned with its graph, and whoever keeps the result keeps the graph.
Fix: Detach each loss, or fetch its number, before it is added up or put into a list.
    total += loss.detach()

returns=list
What is returned is the list of the losses, and not their mean.
Fix: Divide their sum by their number.
    return sum(losses) / len(losses)

mean=sum
What is returned is the sum of the losses, and not their mean.
Fix: Divide it by the number of batches.
    return total / len(batches)

mean=mixed
The losses of the batches were added up, and divided by the number of rows. Each is a mean already.
Fix: Divide by the number of batches; or multiply each loss by its rows first, then divide by all rows.
    total += loss.item() * len(labels)
    rows += len(labels)

mean=last
What is returned is the loss of the last batch alone.
Fix: Add up the losses in the loop, and divide the sum after it.
    total += loss.item()

mean=batches
Each batch counted the same, but the last one is shorter.
Fix: Multiply each loss by its rows, add up, and divide by the number of all rows.
    total += loss.item() * len(labels)
    rows += len(labels)

mean=weighted
The losses were added up over the rows, and not divided.
Fix: Divide by the number of all rows.
    return total / rows

mean=too large
Each loss was multiplied by its rows, but the sum was divided by the number of batches.
Fix: Divide by the number of all rows.

graph=yes
The outputs were computed with a graph: PyTorch kept all activations for a backward pass that never comes.
Fix: Compute the outputs and the loss without gradients.
    with torch.inference_mode():

rows=full
The last batch is shorter, and was left out. Its rows count, too.
Fix: Go through all batches, and count the rows of each.
    for inputs, labels in batches:

keep=outputs
The outputs of all batches were kept, though they are not needed once their loss is computed.
Fix: Keep the number alone.
    total += loss.item() * len(labels)

keep=joined
The outputs of all batches were joined for one loss, so all of them are in memory at once.
Fix: Compute the loss of each batch, and keep its number.
    total += loss_fn(model(inputs), labels).item() * len(labels)

keep=batches
All batches were joined into one, so it needs the memory of all of them at once.
Fix: Go through the batches, one by one.
    for inputs, labels in batches:
""")
own_mistakes = partial(mistakes, common=COMMON + OWN)

TASKS = (
    Task(
        does="trains on each batch, and returns the mean loss without its graph",
        reference=train,
        observe=observe_train,
        begin="Write the training loop of lesson 4. What do you keep of each loss, so that no graph stays?",
        words=WORDS,
        mistakes=own_mistakes("""
train_mode=as it is
zero=never; zero=late
step=never (hides zero=late)
keep=graphs; keep=outside; keep=graphs outside
returns=graph (hides keep=graphs); returns=list (hides mean); returns=nothing (hides mean)
mean=sum; mean=mixed; mean=last

backward=never (hides zero)
backward() was not called, so there were no gradients, and nothing was learned.
Fix: Call it on each loss, before step().
    loss.backward()
"""),
    ),
    Task(
        does="returns the mean loss of all rows, with the memory of one batch",
        reference=evaluate,
        observe=observe_evaluate,
        begin="Which mode, and does this need a graph? Then go through the batches, and keep numbers only.",
        words=WORDS,
        mistakes=own_mistakes("""
test_mode=as it is
graph=yes; graph=frozen (hides returns=graph)
rows=first (hides keep=outputs, keep=joined, keep=outside, mean=batches, mean=sum, mean=last)
rows=full (hides mean=batches)
keep=outputs; keep=joined (hides mean=batches, mean=sum, mean=last)
keep=batches (hides rows, mean=batches, mean=sum, mean=last); keep=outside
mean=batches; mean=sum; mean=weighted; mean=mixed; mean=too large; mean=last
returns=list (hides mean); returns=nothing (hides mean)

returns=graph (hides graph=yes)
The losses were computed with a graph, and the result has one. It holds the activations of all batches.
Fix: Compute the outputs and the loss without gradients.
    with torch.inference_mode():
"""),
    ),
)
