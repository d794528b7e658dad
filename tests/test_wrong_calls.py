"""Calls that learners get wrong are refused before anything is trained; unusual legal ones are not."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.evaluation import evaluate
from gpulesson.models import MLP, count_parameters
from gpulesson.timing import measure
from gpulesson.training import NonFiniteLossError, fit

X, Y = torch.randn(8, 6), torch.arange(8) % 4
PAIR = [(X, Y)]
CE, MSE = nn.CrossEntropyLoss(), nn.MSELoss()


class Returns(MLP):
    """A model that wraps its outputs."""

    def __init__(self, wrap: Any, *sizes: int) -> None:
        super().__init__(*sizes)
        self.wrap = wrap

    def forward(self, inputs):
        return self.wrap(super().forward(inputs))


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 4))


def batches(inputs: Any, targets: Any) -> dict[str, Any]:
    return {"batches": [(inputs, targets)]}


def regression(targets: Any, outputs: int = 1) -> dict[str, Any]:
    return {"model": MLP(6, outputs), "loss_fn": MSE, "batches": [(X, targets)]}


def run(**changed: Any) -> Any:
    """Call `fit` with what is right but for what is changed."""
    call = {"model": model(), "batches": PAIR, "loss_fn": CE, "device": "cpu", "epochs": 2} | changed
    if "optimizer" not in call:
        trained = (
            call["model"] if isinstance(call["model"], nn.Module) and call["model"] is not CE else model()
        )
        call["optimizer"] = torch.optim.SGD(trained.parameters(), lr=0.1)
    return fit(**call)


def other_schedule() -> Any:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model().parameters(), lr=0.1), 1)


# What is changed, and words of the message: what was found, what was expected, the remedy.
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "model: the class": ({"model": MLP}, ["the class MLP", "nn.Module", "MLP(…)"]),
    "model: a device's name": ({"model": "cuda"}, ["'cuda'", "nn.Module", "the order is"]),
    "model: None": ({"model": None}, ["None", "nn.Module"]),
    "model: a loss": ({"model": CE}, ["CrossEntropyLoss", "the order is"]),
    "loss: the class": ({"loss_fn": nn.CrossEntropyLoss}, ["the class", "CrossEntropyLoss(…)"]),
    "loss: a name": ({"loss_fn": "mse"}, ["'mse'", "a function", "nn.CrossEntropyLoss()"]),
    "loss: a value": ({"loss_fn": torch.tensor(1.0)}, ["tensor float32", "a function"]),
    "optimizer: the class": ({"optimizer": torch.optim.Adam}, ["the class Adam", "Adam(…)"]),
    "optimizer: None": ({"optimizer": None}, ["None", "torch.optim.Adam(model.parameters())"]),
    "batches: a tensor": ({"batches": X}, ["tensor float32 [8, 6]", "(inputs, targets)", "DataLoader"]),
    "batches: one pair": ({"batches": (X, Y)}, ["tuple of 2", "[(inputs, targets)]"]),
    "batches: the dataset": (
        {"batches": TensorDataset(X, Y)},
        ["a TensorDataset", "(inputs, targets)", "DataLoader"],
    ),
    "batches: None": ({"batches": None}, ["None", "DataLoader"]),
    "batches: a generator": ({"batches": iter(PAIR)}, ["generator is used up", "list_iterator", "Batches"]),
    "batches: three things": ({"batches": [(X, Y, Y)]}, ["tuple of 3", "a pair", "collate_fn"]),
    "batches: dicts": ({"batches": [{"x": X, "y": Y}]}, ["keys 'x', 'y'", "a pair", "collate_fn"]),
    "batches: only inputs": ({"batches": [X]}, ["tensor float32", "a pair"]),
    "inputs: NumPy": (batches(X.numpy(), Y), ["NumPy array", "torch.as_tensor"]),
    "inputs: None": (batches(None, Y), ["None", "a transform"]),
    "inputs: a list": (batches(X.tolist(), Y), ["list of 8", "Linear", "one tensor"]),
    "inputs: float64": (batches(X.double(), Y), ["float64", "float32", "inputs.to(torch.float32)"]),
    "inputs: integers": (batches(X.long(), Y), ["int64", "inputs.to(torch.float32)"]),
    "inputs: too wide": (batches(torch.zeros(8, 7), Y), ["[8, 7]", "6 values", "nn.Linear(7, …)"]),
    "inputs: images": (batches(torch.zeros(8, 2, 3), Y), ["[8, 2, 3]", "6 values", "inputs.flatten(1)"]),
    "targets: a list": (batches(X, Y.tolist()), ["list of 8", "a tensor", "torch.as_tensor(targets)"]),
    "targets: floats": (batches(X, Y.float()), ["float32 [8]", "int64", "targets.long()"]),
    "targets: bool": (batches(X, Y > 1), ["bool [8]", "int64", "targets.long()"]),
    "targets: one-hot integers": (batches(X, F.one_hot(Y)), ["int64 [8, 4]", "targets.argmax(1)"]),
    "targets: a column": (batches(X, Y[:, None]), ["int64 [8, 1]", "targets.squeeze(1)"]),
    "targets: too few": (batches(X, Y[:5]), ["[8, 4]", "[5]", "as many samples"]),
    "targets: none": (batches(X[:0], Y[:0]), ["no sample", "one or more"]),
    "targets [N] for outputs [N, 1]": (regression(X[:, 0]), ["[8, 1]", "[8]", "targets.unsqueeze(1)"]),
    "the same, by hand": (
        regression(X[:, 0]) | {"loss_fn": lambda outputs, targets: ((outputs - targets) ** 2).mean()},
        ["[8, 1]", "[8]", "targets.unsqueeze(1)"],
    ),
    "model returns a tuple": ({"model": Returns(lambda o: (o, o), 6, 4)}, ["tuple of 2", "one tensor"]),
    "model returns None": ({"model": Returns(lambda o: None, 6, 4)}, ["None", "return the outputs"]),
    "model detaches": ({"model": Returns(torch.detach, 6, 4)}, ["no gradient", "detach()"]),
    "model is frozen": ({"model": model().requires_grad_(False)}, ["frozen", "requires_grad_(True)"]),
    "loss returns a float": (
        {"loss_fn": lambda o, t: F.cross_entropy(o, t).item()},
        ["returned", "a tensor", "without .item()"],
    ),
    "loss detaches": ({"loss_fn": lambda o, t: F.cross_entropy(o, t).detach()}, ["no gradient", "detach()"]),
    "device: 0": ({"device": 0}, ["'0'", "cpu, gpu"]),
    "device: not there": ({"device": "cuda:77"}, ["'cuda:77'", "On this machine"]),
    "epochs: 2.5": ({"epochs": 2.5}, ["epochs=2.5", "whole number", "passes"]),
    "epochs: a text": ({"epochs": "3"}, ["epochs='3'", "whole number"]),
    "epochs: True": ({"epochs": True}, ["epochs=True", "bool"]),
    "epochs: None": ({"epochs": None}, ["epochs=None", "whole number"]),
    "clip_norm: a text": ({"clip_norm": "1"}, ["clip_norm='1'", "number above 0"]),
    "progress: a text": ({"progress": "yes"}, ["'yes'", "True or False"]),
    "amp: half": ({"amp": "half"}, ["'half'", "bf16"]),
    "on_epoch: None called": ({"on_epoch": 3}, ["on_epoch is 3", "function"]),
    "scheduler: a class": ({"scheduler": torch.optim.lr_scheduler.StepLR}, ["the class", "StepLR(…)"]),
    "scheduler: another's": ({"scheduler": other_schedule()}, ["another optimizer", "StepLR(optimizer, …)"]),
    "validation: empty": ({"validation": []}, ["nothing to evaluate", "empty", "at least one batch"]),
    "validation: used up": ({"validation": iter(PAIR)}, ["list_iterator", "2 epochs", "DataLoader"]),
    "validation: too wide": ({"validation": [(torch.zeros(8, 7), Y)]}, ["validation", "[8, 7]", "6 values"]),
    "validation: float labels": ({"validation": [(X, Y.float())]}, ["validation", "targets.long()"]),
    "validation: labels too high": ({"validation": [(X, Y + 1)]}, ["validation", "hold 4", "0 to 3"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_and_nothing_has_changed(case):
    changed, words = WRONG[case]
    changed = {"model": model()} | changed
    trained = changed["model"]
    state = dict(trained.state_dict()) if isinstance(trained, nn.Module) else {}
    before = {name: value.clone() for name, value in state.items()}
    torch.manual_seed(1)
    random = torch.get_rng_state()
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        run(**changed)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert torch.equal(random, torch.get_rng_state()) or not state
    assert all(torch.equal(value, state[name]) for name, value in before.items())


LEGAL: dict[str, dict[str, Any]] = {
    "class probabilities": batches(X, torch.softmax(X[:, :4], 1)),
    "ignored labels": batches(X, torch.where(Y == 0, -100, Y)),
    "bytes as labels": batches(X, Y.byte()),
    "a list as a pair": {"batches": [[X, Y]]},
    "a generator for one epoch": {"batches": iter(PAIR), "epochs": 1},
    "validation by a generator for one epoch": {"validation": iter(PAIR), "epochs": 1},
    "a loss of one's own": {"loss_fn": lambda outputs, targets: F.cross_entropy(outputs, targets)},
    "a loss that squeezes": regression(X[:, 0]) | {"loss_fn": lambda o, t: F.mse_loss(o.squeeze(1), t)},
    "a model's tuple": {"model": Returns(lambda o: (o, o), 6, 4), "loss_fn": lambda o, t: CE(o[0], t)},
    "embeddings of integers": {
        "model": nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4)),
        "batches": [(torch.ones(8, 2, dtype=torch.long), Y)],
    },
    "a column for logits": regression((X[:, :1] > 0).float()) | {"loss_fn": nn.BCEWithLogitsLoss()},
    "images for MLP": {"model": MLP(6, 4), "batches": [(X.view(8, 2, 3), Y)], "validation": PAIR},
    "a loader that shuffles": {"batches": DataLoader(TensorDataset(X, Y), 4, shuffle=True)},
}


@pytest.mark.parametrize("case", LEGAL)
def test_unusual_calls_stay_legal(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(**LEGAL[case]).train_loss


def test_a_look_at_validation_changes_no_random_number():
    def weights(**options: Any) -> list[torch.Tensor]:
        network = model()
        torch.manual_seed(2)
        run(model=network, batches=DataLoader(TensorDataset(X, Y), 4, shuffle=True), **options)
        return list(network.parameters())

    loader = DataLoader(TensorDataset(X, Y), 4, shuffle=True)
    once, again = weights(validation=loader, epochs=1), weights(epochs=1)
    assert all(map(torch.equal, once, again))


def test_weights_that_the_last_step_ruins_are_not_returned():
    network = MLP(6, 4)
    with pytest.raises(NonFiniteLossError, match=r"'layers.0.weight' are not finite after epoch 1"):
        run(
            model=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=1e38),
            epochs=1,
            batches=[(X * 1e3, Y)],
        )


def test_a_validation_loss_that_is_not_finite_ends_the_run():
    with pytest.raises(NonFiniteLossError, match="the validation loss is nan before the first step"):
        run(validation=[(X * torch.nan, Y)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: measure(X, device="cpu"), "fn is a tensor float32.*lambda"),
        (lambda: count_parameters(MLP), r"the class MLP.*MLP\(…\)"),
        (lambda: MLP(784.0, 10), "784.0.*whole number"),
        (lambda: evaluate(MLP, PAIR, CE, "cpu"), "the class MLP"),
        (lambda: evaluate(MLP(6, 4), [(X[:0], Y[:0])], CE, "cpu"), "no sample"),
    ],
)
def test_other_functions(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
