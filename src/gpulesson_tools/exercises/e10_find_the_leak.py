"""Exercise 10: train and evaluate, and keep nothing that takes memory."""

import weakref

import torch
from torch import nn

from gpulesson_tools.exercises.contract import Task, kind_of, number_of
from gpulesson_tools.exercises.training import observe_test, observe_training, testing, train_step
from gpulesson_tools.exercises.words import COMMON

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
    """Return a model on the GPU with this many hidden layers, in this mode, and batches of this many rows."""
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
    *, rows="all", keep="nothing", mean="right", returns="number", **how,
):  # fmt: skip
    losses, count_rows = [], 0
    batches = batches[:1] if rows == "first" else batches
    kept = "graph" if keep == "graphs" or returns == "graph" else "tensor"
    for inputs, labels in batches:
        losses.append(
            train_step(model, inputs, labels, loss_fn, optimizer, inputs.device, returns=kept, **how)
        )
        count_rows += len(labels)
    if keep == "outside":
        keep_outside(model, losses)
    total, count = sum(losses), len(losses)
    result = {"right": total / count, "sum": total, "mixed": total / count_rows, "last": losses[-1]}[mean]
    return {"graph": result, "list": losses, "nothing": None}.get(returns, result.detach())


def observe_train(function, facts):
    (model, batches), loss_fn, values = make(0, [ROWS] * 3, training=False), Loss(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call():
        result = function(model, optimizer, loss_fn, batches)
        values.append(number_of(result))
        return asked_for(result)

    def twice():
        call()
        before = torch.cuda.memory_allocated()
        kind = call()
        return kind, torch.cuda.memory_allocated() - before > 2 * BLOCK

    kept = []
    observe_training(model, lambda _: kept.extend(twice()), facts)
    kind, facts["held"] = kept
    facts["losses"], facts["outputs"] = loss_fn.rows, loss_fn.most[1] > 1
    facts["graphs"] = loss_fn.most[0] > 1 and "graph" not in kind.partition(" on ")[2]
    facts["kind"], facts["value"] = kind, values


def evaluate(
    model, loss_fn, batches,
    *, test_mode="eval", graph="no", rows="all", keep="nothing", mean="rows", returns="number",
):  # fmt: skip
    if keep == "batches":
        batches = [tuple(map(torch.cat, zip(*batches, strict=True)))]
    batches = batches[:1] if rows == "first" else batches
    if rows == "full":
        batches = [batch for batch in batches if len(batch[1]) == len(batches[0][1])]
    losses, counts, kept = [], [], []
    with testing(model, test_mode=test_mode, graph="no" if graph == "no" else "yes"):
        for inputs, labels in batches:
            outputs = model(inputs)
            kept += [(outputs, labels)] if keep in ("outputs", "joined") else []
            losses.append(loss_fn(outputs, labels) if keep != "joined" else 0)
            counts.append(len(labels))
        if keep == "joined":
            outputs, labels = map(torch.cat, zip(*kept, strict=True))
            losses, counts = [loss_fn(outputs, labels)], [len(labels)]
    if keep == "outside":
        keep_outside(model, losses)
    plain, weighted = sum(losses), sum(loss * n for loss, n in zip(losses, counts, strict=True))
    means = {"rows": weighted / sum(counts), "batches": plain / len(losses), "sum": plain}
    means |= {"mixed": plain / sum(counts), "turned": weighted / len(losses), "last": losses[-1]}
    result = means[mean] if graph == "returned" else means[mean].detach()
    return {"list": losses, "nothing": None}.get(returns, result)


def observe_evaluate(function, facts):
    (model, batches), loss_fn = make(0, [ROWS, ROWS, ROWS, 20], training=True), Loss()
    value, watch = observe_test(model, lambda: function(model, loss_fn, batches), facts)
    facts["passes"] = [len(each["rows"]) for each in watch.passes]
    facts["losses"], facts["outputs"] = loss_fn.rows, loss_fn.most[1] > 1
    model, batches = make(hidden := 5, [ROWS] * 5, training=False)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function(model, Loss(), batches)
    model.zero_grad()
    facts["peak"] = torch.cuda.max_memory_allocated() - before > (hidden - 1) * ROWS * WIDTH * 4
    facts["held"] = torch.cuda.memory_allocated() - before > 2 * BLOCK
    facts["kind"] = asked_for(value)


WORDS = {
    "graphs": "the graphs of several losses were there at once.",
    "outputs": "the outputs of several batches were there at once.",
    "held": "more than the result stays in memory after the call.",
    "peak": "at most, it needs more memory than one batch needs without a graph.",
    "losses": "the number of rows, of each call of the loss,",
    "passes": "the number of rows, of each call of the model,",
    "value": "the mean loss",
}

OWN = COMMON | {
    "keep=graphs": """The losses were kept with their graphs until the end of the loop.
        Fix: Detach each loss, or fetch its number, before it is added up or put into a list.""",
    "keep=outside": """The call leaves tensors behind that are still there after it. If each call adds some,
        memory grows from call to call.
        Fix: Make the list inside the function, detach each loss, and return the mean alone.""",
    "keep=outputs, joined, batches": """The outputs of all batches were in memory at once: they were kept or
        joined, or the batches were.
        Fix: Go through the batches, compute the loss of each, and keep its number alone.""",
    "returns=graph": """The result was returned with its graph, and whoever keeps the result keeps the graph.
        Fix: Detach each loss, or fetch its number, before it is added up or put into a list.""",
    "graph=yes, returned": """The outputs were computed with a graph: PyTorch kept all activations for a
        backward pass that never comes.
        Fix: Compute the outputs and the loss without gradients.""",
    "rows=full": """The last batch is shorter, and was left out. Its rows count, too.
        Fix: Go through all batches, and count the rows of each.""",
    "mean=sum": """The losses were added up, and not divided.
        Fix: Divide a sum of the batches' losses by their number, and one over all rows by theirs.""",
    "mean=mixed": """The losses of the batches were added up, and divided by the number of rows. Each is a
        mean.
        Fix: Divide a sum of the batches' losses by their number, and one over all rows by theirs.""",
    "mean=turned": """The losses of all rows were added up, and divided by the number of batches.
        Fix: Divide a sum over all rows by the number of rows.""",
    "mean=last": """What is returned is the loss of the last batch alone.
        Fix: Add up the losses in the loop, and divide the sum after it.""",
    "returns=list": """What is returned is the list of the losses, and not their mean.
        Fix: Divide their sum by their number.""",
}

TASKS = (
    Task(
        does="trains on each batch, and returns the mean loss without its graph",
        reference=train,
        observe=observe_train,
        begin="Write the training loop of lesson 4. What do you keep of each loss, so that no graph stays?",
        words=WORDS,
        table=OWN,
        only="train_mode; rows=first; zero; backward; step; keep=graphs; keep=outside; "
        "returns=graph; returns=list; returns=nothing; mean=sum; mean=mixed; mean=last",
    ),
    Task(
        does="returns the mean loss of all rows, with the memory of one batch",
        reference=evaluate,
        observe=observe_evaluate,
        begin="Which mode, and does this need a graph? Then go through the batches, and keep numbers only.",
        words=WORDS,
        table=OWN,
        only="test_mode; graph; rows; keep=outputs; keep=joined; keep=batches; keep=outside; mean=batches; "
        "mean=sum; mean=mixed; mean=turned; mean=last; returns=list; returns=nothing",
    ),
)
