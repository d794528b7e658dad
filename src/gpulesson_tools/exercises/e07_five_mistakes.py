"""Exercise 7: five functions with a mistake of the lesson each; three stop with an error, two say nothing."""

import numpy as np
import torch
from torch import nn

from gpulesson_tools.exercises.contract import Task, kind_of, number_of
from gpulesson_tools.exercises.training import classes, observe_training, train_step
from gpulesson_tools.exercises.words import COMMON, SEEN

DEVICES = ("cuda", "cpu")


def make(device="cuda", dropout=0.0):
    """Return a model, and inputs and labels on the CPU; the same ones each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))
    return model.to(device), torch.randn(24, 6), torch.arange(24) % 3


def weighted_loss(outputs, labels, class_weights, *, where="there", weights="used", returns="loss"):
    if where == "outputs":
        outputs, labels = outputs.cpu(), labels.cpu()
    device = {"stays": "cpu", "cuda": "cuda"}.get(where, outputs.device)
    dropped = weights == "dropped" or (weights == "tried" and outputs.is_cuda)
    loss = nn.CrossEntropyLoss(None if dropped else class_weights.to(device))(outputs, labels)
    return {"number": loss.item(), "detached": loss.detach()}.get(returns, loss)


def observe_weighted_loss(function, facts):
    for device in DEVICES:
        model, inputs, labels = make(device)
        value = function(model(inputs.to(device)), labels.to(device), torch.tensor([1.0, 2.0, 5.0]))
        facts[f"kind {device}"] = kind_of(value)
        facts[f"value {device}"] = number_of(value)


def observe_train_step(function, facts):
    for device in DEVICES:
        (model, inputs, labels), loss_fn, where = make(device), nn.CrossEntropyLoss(), []
        loss_fn.register_forward_pre_hook(lambda _, given, where=where: where.append(str(given[0].device)))
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), {"loss": "", "model": ""}
        arguments = model, inputs, labels, loss_fn, optimizer, torch.device(device)
        try:
            observe_training(model, lambda _, given=arguments: [function(*given) for _ in range(2)][1], found)
        finally:
            found["loss"], found["model"] = " and ".join(sorted(set(where))), str(model[0].weight.device)
            facts |= {f"{name} {device}": value for name, value in found.items()}


def probabilities(outputs, *, cpu="yes", detach="yes", softmax="1", returns="array"):
    result = outputs if softmax == "no" else outputs.softmax(dim=int(softmax))
    result = result.cpu() if cpu == "yes" else result
    result = result.detach() if detach == "yes" else result
    return result if returns == "tensor" else result.numpy()


def observe_probabilities(function, facts):
    for device, graph in (("cuda", False), ("cuda", True), ("cpu", True)):
        model, inputs, _ = make(device)
        with torch.set_grad_enabled(graph):
            outputs = model(inputs.to(device))
        value = function(outputs)
        numbers = value.detach().cpu() if isinstance(value, torch.Tensor) else value
        facts["value"] = None if value is None else np.asarray(numbers, dtype=float).tolist()
        facts["kind"] = kind_of(value).replace("a ndarray", "an array").partition(" on ")[0]


def batch_losses(model, loss_fn, batches, *, keep="number", backward="no", returns="list"):
    losses = []
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        if backward == "yes":
            loss.backward()
        losses.append(loss if keep == "graph" else loss.detach())
    return {"list": losses, "mean": sum(losses) / len(losses), "last": losses[-1]}[returns]


def observe_batch_losses(function, facts):
    model, inputs, labels = make()
    batches = list(zip(inputs.cuda().split(6), labels.cuda().split(6), strict=True))
    value = function(model, nn.CrossEntropyLoss(), batches)
    losses = list(value) if isinstance(value, list | tuple) else [value]
    facts["graph"] = any(isinstance(each, torch.Tensor) and each.requires_grad for each in losses)
    facts["gradients"] = any(p.grad is not None for p in model.parameters())
    facts["kind"] = "one loss" if number_of(value) is not None else kind_of(value).replace("tuple", "list")
    strange = [kind_of(each) for each in losses if number_of(each) is None]
    facts["kind"] += f" with {strange[0]}" if strange and losses != [value] else ""
    facts["value"] = [number_of(each) for each in losses]


def predict(model, inputs, *, mode="eval", back="as it was", dim="1"):
    was = model.training
    if mode == "eval":
        model.eval()
    elif mode == "train":
        model.train()
    elif mode == "flag":
        model.training = False
    with torch.no_grad():
        answers = classes(model(inputs), dim=dim)
    model.train({"eval": False, "train": True}.get(back, was))
    return answers


def observe_predict(function, facts):
    values, modes = [], []
    for came in ("training", "evaluation"):
        (model, inputs, _), passes = make(dropout=0.5), []
        model.train(came == "training").register_forward_pre_hook(
            lambda called, _, passes=passes: passes.append([called.training, called[2].training])
        )
        values.append(function(model, inputs.cuda()))
        modes += passes[:1]
        facts["modes"] = modes
        facts[f"left from {came}"] = sorted({layer.training for layer in model.modules()})
    facts["kind"] = kind_of(values[0]).partition(" on ")[0]
    facts["value"] = [each.tolist() if isinstance(each, torch.Tensor) else each for each in values]


WORDS = SEEN | {
    "loss": "where the loss is computed",
    "model": "where the model is afterwards",
    "weights": "the sum of all weights afterwards",
    "value": "the loss",
}
NAMED = [words for words in WORDS.values() if isinstance(words, str) and not words.endswith(".")]
OF_BOTH = {
    f"{name} {device}": f"{words} (device {device})" if words in NAMED else words
    for name, words in WORDS.items()
    for device in DEVICES
}

OF_WEIGHTED_LOSS = {
    "where=stays": """The class weights stayed on the CPU, and the loss needs them where the outputs are.
        Fix: Move the loss, or the weights before it is made (a tensor's `to` returns a copy: use that).""",
    "where=cuda": """The class weights always go to the GPU, so the function fails with outputs on the CPU.
        Fix: Move them to the device of the outputs, whichever it is.""",
    "where=outputs": """The outputs and labels were brought to the CPU. It runs, but each call copies them,
        and the CPU computes.
        Fix: Leave both where they are, and move the class weights to them.""",
    "weights=dropped, tried": """The loss has no class weights, at least on a GPU: each class counts the same.
        Fix: Keep the weights, and move them to the device of the outputs.""",
    "returns=number, detached": """What is returned has no graph, so nobody can call backward() on it.
        Fix: Return the loss itself.""",
}

OF_TRAIN_STEP = COMMON | {
    "feed=labels cuda": """The labels always go to the GPU, whichever device the function is given.
        Fix: Move them to the device that the function is given.""",
    "feed=outputs back, model back": """The loss was computed on the CPU: the outputs, or the model itself,
        were moved there.
        Fix: Leave both on the device, and move the labels.""",
}

OF_PROBABILITIES = {
    "cpu=no": """NumPy works in the computer's own memory, and the tensor is on the GPU.
        Fix: Copy the tensor to the CPU first.""",
    "detach=no": """NumPy knows no gradients, and the tensor still has its graph.
        Fix: Detach the tensor first: the same numbers, without the graph.""",
    "softmax=no": """What is returned are the outputs as they came, and not probabilities.
        Fix: Compute the softmax over the classes of each row.""",
    "softmax=0": """The softmax ran over the rows of the batch, and not over the classes of each row.
        Fix: The outputs are [rows, classes], so the classes are dimension 1.""",
    "returns=tensor": """What is returned is a tensor, and not a NumPy array.
        Fix: Make an array of it: detach, copy to the CPU, then NumPy.""",
}

OF_BATCH_LOSSES = {
    "keep=graph": """Each loss was kept with its graph, and the graph holds what a backward pass would need.
        Fix: Keep the number alone: a detached loss, or a plain Python number.""",
    "backward=yes": """backward() was called here, where nothing is trained. It computes gradients, which take
        memory.
        Fix: Leave it out. A detached loss has no graph either.""",
    "returns=mean, last": """One number is returned, and not the loss of each batch.
        Fix: Collect the losses of all batches in a list, and return it.""",
}

OF_PREDICT = COMMON | {
    "mode=as it is, train": """The model was in training mode when it was called. There dropout draws again in
        each call, so the answers are partly chance.
        Fix: Switch the model to evaluation mode before it is called. Turning off gradients does not do
        that.""",
    "mode=flag": """Only the flag of the outer module was set. The layers inside have one each, and dropout
        stayed on.
        Fix: Call eval(), which goes through all layers.""",
    "back=eval": """The model stays in evaluation mode, so dropout is off in all the training that follows.
        Fix: Note the mode at the beginning, and set it again at the end.""",
    "back=train": """The model is always in training mode afterwards, even if it came in evaluation mode.
        Fix: Note the mode at the beginning, and set that one again.""",
}

TASKS = (
    Task(
        does="returns the cross-entropy with class weights",
        reference=weighted_loss,
        observe=observe_weighted_loss,
        begin="Return what an nn.CrossEntropyLoss with the class weights computes.",
        words=OF_BOTH,
        table=OF_WEIGHTED_LOSS,
    ),
    Task(
        does="trains on one batch, on the device",
        reference=train_step,
        observe=observe_train_step,
        begin="Copy the inputs and the labels to the device. Then come the five calls of a training step.",
        words=OF_BOTH,
        table=OF_TRAIN_STEP,
        only="feed=labels stay; feed=labels cuda; feed=outputs back; feed=model back; asked; inputs_as; "
        "zero; backward; step",
    ),
    Task(
        does="returns the probabilities as a NumPy array",
        reference=probabilities,
        observe=observe_probabilities,
        begin="Return the softmax of each row, as a NumPy array.",
        words={"value": "these are not the softmax of each row."},
        derived=frozenset(),
        table=OF_PROBABILITIES,
    ),
    Task(
        does="returns the loss of each batch, and keeps no graph",
        reference=batch_losses,
        observe=observe_batch_losses,
        derived=frozenset(),
        begin="Go through the batches, and return a list with the loss of each.",
        words={
            "graph": "a loss in the result has its graph.",
            "gradients": "the model has gradients afterwards.",
            "value": "the list",
        },
        table=OF_BATCH_LOSSES,
    ),
    Task(
        does="returns answers without chance, and leaves the model in its mode",
        reference=predict,
        observe=observe_predict,
        begin="Switch to the right mode, compute the classes, and set the mode back.",
        words={
            "modes": lambda found, _: "dropout was on." if found else "the model was not called.",
            "left from training": lambda found, _: (
                "it came in training mode, and is in evaluation mode now."
                if found == [False]
                else "it came in training mode, and some of its layers are in evaluation mode now."
            ),
            "left from evaluation": "it came in evaluation mode, and is in training mode now.",
            "value": "the answers are not those of the model in evaluation mode.",
        },
        table=OF_PREDICT,
        only="mode; back; dim=0; dim=values",
    ),
)
