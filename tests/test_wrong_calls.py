"""Calls that would train something else are refused before a weight changes; unusual legal ones are not."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from gpulesson.capture import captured_step
from gpulesson.checkpoint import (
    AutoSave,
    latest,
    load_checkpoint,
    resume,
    save_checkpoint,
)
from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import (
    DeviceError,
    choose_device,
    device_name,
    devices_of,
    named_device,
    tensor_devices,
    to_device,
)
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.step import Step
from gpulesson.timing import measure, synchronize
from gpulesson.training import History, NonFiniteLossError, fit

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 4
PAIR = [(X, Y)]
CE, MSE = nn.CrossEntropyLoss(), nn.MSELoss()
IMAGES = torch.zeros(8, 1, 4, 4)


class Returns(MLP):
    """A model that wraps its outputs."""

    def __init__(self, wrap: Any, *sizes: int) -> None:
        super().__init__(*sizes)
        self.wrap = wrap

    def forward(self, inputs):
        return self.wrap(super().forward(inputs))


class Takes(nn.Module):
    """A model of one layer whose forward is `how`, a function of the layer and what it is called with."""

    def __init__(self, how: Any, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.how = layer or nn.Linear(6, 4), how

    def forward(self, *inputs):
        return self.how(self.layer, *inputs)


class NoForward(nn.Module):
    """Whose author forgot forward, or spelled it otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)


class TwoPasses(IterableDataset):
    """Gives batches, not samples."""

    def __iter__(self):
        return iter(PAIR)


def seeded(make: Any) -> Any:
    """Build without drawing random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def model() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 4)))


def batches(inputs: Any, targets: Any) -> dict[str, Any]:
    return {"batches": [(inputs, targets)]}


def regression(targets: Any, outputs: int = 1, loss: Any = MSE) -> dict[str, Any]:
    return {"model": MLP(6, outputs), "loss_fn": loss, "batches": [(X, targets)]}


def adam(trained: nn.Module | None = None) -> torch.optim.Optimizer:
    return torch.optim.Adam((trained or model()).parameters())


def scheduled(make: Any, **options: Any) -> dict[str, Any]:
    trained = model()
    optimizer = adam(trained)
    return {"model": trained, "optimizer": optimizer, "scheduler": make(optimizer)} | options


def stepped(make: Any = None, accumulate: int = 1, **options: Any) -> dict[str, Any]:
    trained = model()
    optimizer = adam(trained)
    step = Step(optimizer, accumulate=accumulate, scheduler=make and make(optimizer))
    return {"model": trained, "optimizer": optimizer, "step": step} | options


def twice() -> dict[str, Any]:
    call = stepped(lambda optimizer: lr_scheduler.StepLR(optimizer, 2))
    return call | {"scheduler": call["step"].scheduler}


def filled(value: float) -> nn.Module:
    trained = model()
    nn.init.constant_(trained[0].weight, value)
    return trained


def loaded(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), 4, **options)


COLUMN = (Y > 1).float()[:, None]
DETACHED = "compute without torch.no_grad()"

# What is changed in a right call, and words of the message: what was found, what was expected, the remedy.
WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # the model
    "model: the class": ({"model": MLP}, "the class MLP", "torch.nn.Module", "MLP(…)"),
    "model: a device's name": ({"model": "cuda"}, "'cuda'", "torch.nn.Module", "the order is"),
    "model: a loss": ({"model": CE}, "CrossEntropyLoss", "with weights", "the order is"),
    "model: frozen": (
        {"model": model().requires_grad_(False)},
        "frozen",
        "training would change nothing",
        "requires_grad_(True)",
    ),
    "model: detaches": ({"model": Returns(torch.detach, 6, 4)}, "no gradient", "expected one", DETACHED),
    "model: three outputs for four classes": ({"model": MLP(6, 3)}, "hold 3", "in 0 to 2", "more outputs"),
    "model: NaN weights": ({"model": filled(torch.nan)}, "loss is nan", "finite numbers", "look for inputs"),
    "model: on another device": (
        {"model": nn.Linear(6, 4, device="meta")},
        "'weight' on meta",
        "go to cpu",
        "model.to(device)",
    ),
    # the loss
    "loss: the class": ({"loss_fn": nn.CrossEntropyLoss}, "the class", "a function", "CrossEntropyLoss(…)"),
    "loss: a float": (
        {"loss_fn": lambda o, t: F.cross_entropy(o, t).item()},
        "returned",
        "a tensor",
        "without .item()",
    ),
    "loss: detached": (
        {"loss_fn": lambda o, t: CE(o, t).detach()},
        "no gradient",
        "expected one",
        "detach()",
    ),
    "loss: each sample": (
        {"loss_fn": nn.CrossEntropyLoss(reduction="none")},
        "reduction='none'",
        "no single number",
        "reduction='mean'",
    ),
    "loss: each sample, by hand": (
        {"loss_fn": lambda o, t: F.cross_entropy(o, t, reduction="none")},
        "shape [8]",
        "one number",
        "reduction='mean'",
    ),
    "loss: all labels ignored": (
        batches(X, torch.full((8,), -100)),
        "loss is nan",
        "finite",
        "label is ignored",
    ),
    # batches
    "batches: a tensor": ({"batches": X}, "tensor float32 [8, 6]", "(inputs, targets)", "DataLoader"),
    "batches: one pair": ({"batches": (X, Y)}, "tuple of 2", "(inputs, targets)", "[(inputs, targets)]"),
    "batches: the dataset": (
        {"batches": TensorDataset(X, Y)},
        "TensorDataset",
        "(inputs, targets)",
        "DataLoader",
    ),
    "batches: empty": ({"batches": []}, "empty", "at least one batch", "Give"),
    "batches: a generator": (
        {"batches": iter(PAIR)},
        "list_iterator",
        "exhausted after one pass",
        "a DataLoader",
    ),
    "batches: three things": ({"batches": [(X, Y, Y)]}, "tuple of 3", "a pair", "collate_fn"),
    "batches: samples": (
        {"batches": list(zip(X, Y, strict=True))},
        "int64 []",
        "one entry a sample",
        "DataLoader(dataset, batch_size=64)",
    ),
    # inputs
    "inputs: NumPy": (batches(X.numpy(), Y), "NumPy array", "a tensor", "torch.as_tensor"),
    # targets
    "targets: a list": (batches(X, Y.tolist()), "list of 8", "a tensor", "torch.as_tensor(targets)"),
    "targets: none": (batches(X[:0], Y[:0]), "no sample", "one or more", "leave out empty batches"),
    "targets: from 1 to 4": (batches(X, Y + 1), "the targets hold 4", "in 0 to 3", "correct the labels"),
    "targets [N] for outputs [N, 1]": (
        regression(X[:, 0]),
        "[8, 1]",
        "of the outputs' shape",
        "targets.unsqueeze(1)",
    ),
    "the same, by hand": (
        regression(X[:, 0], loss=lambda outputs, targets: ((outputs - targets) ** 2).mean()),
        "[8, 1]",
        "of the outputs' shape",
        "targets.unsqueeze(1)",
    ),
    "targets [N, 1] for outputs [N]": (
        regression(X[:, :1]) | {"model": Returns(lambda o: o.squeeze(1), 6, 1)},
        "[8, 1]",
        "of the outputs' shape",
        "targets.squeeze(1)",
    ),
    # the optimizer
    "optimizer: the class": ({"optimizer": torch.optim.Adam}, "the class Adam", "an optimizer", "Adam(…)"),
    "optimizer: of another model": (
        {"optimizer": adam()},
        "none of the model's",
        "change nothing",
        "build the optimizer",
    ),
    # the device
    "device: misspelled": ({"device": "cudaa"}, "'cudaa'", "Names are cpu", "On this machine"),
    "device: not there": (
        {"device": "cuda:77"},
        "'cuda:77'",
        "On this machine",
        "ame one of these|python -m gpulesson",
    ),
    "device: a list": ({"device": ["cpu"]}, "list of 1", "a device", "give 'cpu'"),
    # numbers
    "epochs: 2.5": ({"epochs": 2.5}, "epochs=2.5", "whole number", "passes"),
    "epochs: negative": ({"epochs": -1}, "epochs=-1", "0 or more", "passes"),
    # step
    "step: a precision": ({"step": "bf16"}, "'bf16'", "a Step", "give Step(optimizer, amp='bf16')"),
    "step: of another optimizer": (
        {"step": Step(adam())},
        "another optimizer",
        "fit was given",
        "build it as",
    ),
    "step: accumulates sums": (
        stepped(accumulate=2) | {"loss_fn": nn.CrossEntropyLoss(reduction="sum")},
        "accumulate=2",
        "weighted as means",
        "reduction='mean'",
    ),
    "step: its scheduler ends within the epoch": (
        stepped(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=5), batches=PAIR * 3),
        "of 5 steps",
        "stepped 6 times",
        "total_steps=6",
    ),
    # options
    "epochs: from before the first": (
        {"epochs": range(-2, 1)},
        "range(-2, 1)",
        "counted from 0",
        "range(3, 10)",
    ),
    "scheduler: the Step's own, too": (
        twice(),
        "a StepLR",
        "after each epoch and after each step",
        "give it to one of the two",
    ),
    "batches: an iterator of a loader": (
        {"batches": iter(loaded())},
        "_SingleProcessDataLoaderIter",
        "exhausted after one pass",
        "a DataLoader",
    ),
    "validation: an iterator of a loader": (
        {"validation": iter(loaded())},
        "validation is a _SingleProcessDataLoaderIter",
        "exhausted after one pass",
        "a DataLoader",
    ),
    "targets: a bad label in a later batch": (
        {"batches": [(X, Y), (X, Y), (X, Y + 1)]},
        "step 3: the targets hold 4",
        "in 0 to 3",
        "correct the labels",
    ),
    "targets: a bad label somewhere in a loader": (
        {"batches": DataLoader(TensorDataset(X, torch.where(Y == 3, 9, Y)), 3)},
        "the data: the targets hold 9",
        "in 0 to 3",
        "correct the labels",
    ),
    "validation: a bad label in a later batch": (
        {"validation": [(X, Y), (X, Y + 1)]},
        "validation: step 2: the targets hold 4",
        "in 0 to 3",
        "correct the labels",
    ),
    "autosave: a path": (
        {"autosave": "runs"},
        "autosave is a str",
        "give an AutoSave",
        "with AutoSave(folder",
    ),
    # the scheduler
    "scheduler: the class": ({"scheduler": lr_scheduler.StepLR}, "the class", "a scheduler", "StepLR(…)"),
    "scheduler: another's": (
        {"scheduler": lr_scheduler.StepLR(adam(), 1)},
        "another optimizer",
        "expected one of the optimizer given",
        "StepLR(optimizer, …)",
    ),
    "scheduler: ends too early": (
        scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=3), epochs=5),
        "of 3 steps",
        "stepped 5 times",
        "total_steps=5",
    ),
    # validation
    "validation: empty": ({"validation": []}, "list of 0", "nothing to evaluate", "at least one batch"),
    "validation: used up": ({"validation": iter(PAIR)}, "list_iterator", "2 epochs", "a DataLoader"),
    "validation: a tensor": ({"validation": X}, "tensor float32 [8, 6]", "(inputs, targets)", "DataLoader"),
    "validation: three things": (
        {"validation": [(X, Y, Y)]},
        "validation: the first batch",
        "a pair",
        "collate_fn",
    ),
    "validation: NaN": (
        {"validation": [(X * torch.nan, Y)]},
        "validation loss is nan",
        "finite",
        "not finite",
    ),
}


def right() -> dict[str, Any]:
    return {"model": model(), "batches": PAIR, "loss_fn": CE, "device": "cpu", "epochs": 2}


def run(**changed: Any) -> Any:
    """Call `fit` with what is right but for what is changed; the optimizer has a state already."""
    call = right() | changed
    if "optimizer" not in call:
        trained = (
            call["model"] if isinstance(call["model"], nn.Module) and call["model"] is not CE else model()
        )
        call["optimizer"] = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    return fit(**call)


def states(*owners: Any) -> str:
    """All that a refused call may not change: weights, and what an optimizer and a scheduler keep."""
    found = [
        list(owner.parameters()) if isinstance(owner, nn.Module) else owner.state_dict() for owner in owners
    ]
    return str(found)


@pytest.mark.filterwarnings("ignore:Using a target size")  # as PyTorch says, too
@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_and_no_weight_has_changed(case):
    changed, *words = WRONG[case]
    call = right() | changed
    owners = [
        call[name] for name in ("model", "optimizer", "scheduler") if hasattr(call.get(name), "state_dict")
    ]
    owners = [owner for owner in owners if not isinstance(owner, type)]
    before = states(*owners)
    with pytest.raises((TypeError, ValueError, DeviceError, NonFiniteLossError)) as caught:
        run(**call)
    message = str(caught.value)
    assert [word for word in words if not any(w in message for w in word.split("|"))] == [], message
    assert before == states(*owners)


# What PyTorch or Python itself refuses: words of the error, and words of its note.
NOTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "inputs: too wide": (
        batches(torch.zeros(8, 7), Y),
        "shapes cannot be multiplied",
        "The batch of step 1 has a tensor float32 [8, 7] on cpu as inputs and a tensor int64 [8] on cpu as",
    ),
    "model: no forward": ({"model": NoForward()}, 'required "forward"', "batch of step 1 has"),
    "loss: floats as labels": (batches(X, Y.float()), "Float", "a tensor float32 [8] on cpu as targets"),
    "loss: a label out of range, one of many kinds": (
        {"batches": DataLoader([*zip(X, Y, strict=True), (X[0], Y[3] + 1)], 3)},
        "Target 4 is out of bounds",
        "step 3 (the weights have learned from the batches before it) has",
    ),
    "backward: a change in place": (
        {"model": Takes(lambda layer, inputs: layer(inputs).exp().add_(1))},
        "inplace operation",
        "batch of step 1 has",
    ),
    "a later batch: three things": (
        {"batches": [(X, Y), (X, Y, Y)]},
        "too many values",
        "step 2 (the weights have learned from the batches before it) has a tuple of 3",
    ),
    "a later batch: a column less": (
        {"model": MLP(6, 1), "loss_fn": MSE, "batches": [(X, X[:, :1]), (X, X[:, 0])]},
        "step 2 (the weights have learned from the batches before it): the loss would compare each",
        "a tensor float32 [8] on cpu as targets",
    ),
    "validation: a loader of integers": (
        {"validation": DataLoader(TensorDataset(X.long(), Y), 4, shuffle=True)},
        "dtype",
        "batch of validation: step 1 has a tensor int64 [4, 6] on cpu as inputs",
    ),
    "validation: a later batch": (
        {"validation": [(X, Y), (X, Y, Y)]},
        "too many values",
        "batch of validation after epoch 1: step 2 has a tuple of 3",
    ),
}


@pytest.mark.parametrize("case", NOTED)
def test_an_error_of_the_loop_gets_a_note(case):
    changed, message, note = NOTED[case]
    with pytest.raises((RuntimeError, ValueError, IndexError, NotImplementedError)) as caught:
        run(**changed)
    assert message in str(caught.value)
    if sys.version_info >= (3, 11):
        assert (
            note in "".join(caught.value.__notes__) and 'page "Error messages"' in caught.value.__notes__[0]
        )


@pytest.mark.parametrize("last", [StopIteration, OSError])
def test_an_error_after_a_batch_blames_no_batch(last):
    """In the loader, or in what comes after the last batch."""

    def loader():
        yield X, Y
        yield X[:4], Y[:4]
        if last is OSError:
            raise OSError("no such picture")

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.mean().reshape([] if len(outputs) == 8 else [1])  # which cannot be stacked

    message = "no such picture" if last is OSError else "stack expects each tensor to be equal size"
    with pytest.raises((OSError, RuntimeError), match=message) as caught:
        evaluate(MLP(6, 4), loader(), loss, "cpu")
    assert not hasattr(caught.value, "__notes__")


def on(make: Any) -> Any:
    """What `make` returns for a model and its optimizer."""
    trained = model()
    return make(trained, adam(trained))


def saves(**options: Any) -> AutoSave:
    return on(
        lambda trained, optimizer: AutoSave("runs", **{"model": trained, "optimizer": optimizer} | options)
    )


def saved(folder: Path, **options: Any) -> Path:
    return save_checkpoint(folder / "one.safetensors", **{"model": MLP(6, 4), "epoch": 1} | options)


HERE = Path(__file__)
CONTAINERS = "tensors, in containers or alone"
GENERATOR = "a list of torch.Generator objects"
ONE_TENSOR = "one tensor [N, …]"
GRADIENT = "a tensor of one number that has a gradient"
NEEDED = "give an object that has state_dict() and named_parameters()"

# The call, given a folder to work in, and words of its message, as above.
OTHERS: dict[str, tuple[Any, str, str, str]] = {
    "evaluate: the class": (lambda _: evaluate(MLP, PAIR, CE, "cpu"), "the class MLP", "nn.Module", "MLP(…)"),
    "evaluate: no device": (lambda _: evaluate(MLP(6, 4), PAIR, CE, 1.5), "1.5", "a device", "give 'cpu'"),
    "evaluate: empty batch": (
        lambda _: evaluate(MLP(6, 4), [(X[:0], Y[:0])], CE, "cpu"),
        "no sample",
        "one or more",
        "leave out",
    ),
    "evaluate: [N] for [N, 1]": (
        lambda _: evaluate(MLP(6, 1), [(X, X[:, 0])], MSE, "cpu"),
        "[8, 1]",
        "of the outputs' shape",
        "unsqueeze(1)",
    ),
    "evaluate: check_targets": (
        lambda _: evaluate(MLP(6, 4), PAIR, CE, "cpu", check_targets="no"),
        "'no'",
        "True or False",
        "choose",
    ),
    "Step: the model": (lambda _: Step(model()), "a Sequential", "an optimizer", "torch.optim.Adam"),
    "Step: a schedule's name": (
        lambda _: Step(adam(), scheduler="cosine"),
        "'cosine'",
        "a scheduler",
        "StepLR(optimizer, 10)",
    ),
    "Step: the scheduler's class": (
        lambda _: Step(adam(), scheduler=lr_scheduler.StepLR),
        "the class StepLR",
        "a scheduler",
        "StepLR(…)",
    ),
    "Step: another optimizer's scheduler": (
        lambda _: Step(adam(), scheduler=lr_scheduler.StepLR(adam(), 2)),
        "another optimizer",
        "expected one of the optimizer given",
        "StepLR(optimizer, …)",
    ),
    "load_checkpoint: a folder": (
        lambda _: load_checkpoint(Path(__file__).parent),
        "is a folder",
        "not a checkpoint",
        "latest(folder)",
    ),
    "AutoSave: a yes for the minutes": (
        lambda _: AutoSave("runs", model=(m := model()), optimizer=adam(m), every_minutes=True),
        "every_minutes=True",
        "a number of minutes",
        "give",
    ),
    "AutoSave: no optimizer": (
        lambda _: AutoSave("runs", model=model(), optimizer=None),
        "optimizer is None",
        "an optimizer",
        "torch.optim.Adam",
    ),
    "captured_step: a loader": (
        lambda _: captured_step((m := model()), CE, adam(m), X, PAIR),
        "list of 1",
        "a tensor [N, …]",
        "torch.as_tensor",
    ),
    "captured_step: the class": (
        lambda _: captured_step(MLP, CE, adam(), X, Y),
        "the class MLP",
        "nn.Module",
        "MLP(…)",
    ),
    "to_device: a model": (lambda _: to_device(MLP(6, 4), "cpu"), "a MLP", "tensors", "model.to(device)"),
    "to_device: swapped": (lambda _: to_device("cpu", X), "tensor float32", "a device", "give 'cpu'"),
    "choose_device: a model": (lambda _: choose_device(MLP(6, 4)), "a MLP", "a device", "give 'cpu'"),
    "named_device: None": (lambda _: named_device(None), "None", "a device", "give 'cpu'"),
    "device_name: not there": (
        lambda _: device_name("cuda:77"),
        "'cuda:77'",
        "is not there",
        "On this machine",
    ),
    "measure: a value": (lambda _: measure(X, device="cpu"), "tensor float32", "without arguments", "lambda"),
    "measure: needs arguments": (
        lambda _: measure(lambda inputs: inputs, device="cpu"),
        "<lambda>",
        "without arguments",
        "lambda: model(inputs)",
    ),
    "measure: no repeats": (
        lambda _: measure(lambda: 0, device="cpu", repeats=0),
        "=0",
        "at least 1",
        "repeats=20",
    ),
    "MLP: floats": (lambda _: MLP(784.0, 10), "784.0", "whole number", "MLP(4, 8, 3)"),
    "MLP: a list": (lambda _: MLP([784, 10]), "MLP([784, 10],)", "from inputs to logits", "MLP(4, 8, 3)"),
    "plot: no epochs": (lambda _: History().plot(), "no epoch", "at least one", "plot what fit(…) returned"),
    "plot: no axes": (
        lambda _: History([1.0]).plot(ax=[1]),
        "list of 1",
        "the axes of one plot",
        "plt.gca()",
    ),
    # fit and evaluate
    "fit: a loader that is counted": (
        lambda _: run(batches=enumerate(loaded()), epochs=1),
        "are 0",
        "expected a tensor",
        "without enumerate",
    ),
    "fit: LBFGS": (
        lambda _: run(model=(m := model()), optimizer=torch.optim.LBFGS(m.parameters())),
        "LBFGS",
        "through a closure",
        "use SGD or Adam",
    ),
    "fit: a list of schedulers": (lambda _: run(scheduler=[]), "a list of 0", "a scheduler", "StepLR("),
    "fit: a function for the schedule": (
        lambda _: run(scheduler=lambda epoch: 0.9**epoch),
        "<lambda>",
        "a scheduler",
        "StepLR(",
    ),
    "fit: the optimizer as scheduler": (
        lambda _: on(lambda m, o: run(model=m, optimizer=o, scheduler=o)),
        "an Adam",
        "a scheduler",
        "StepLR(",
    ),
    "fit: parameters as optimizer": (
        lambda _: run(optimizer=model().parameters()),
        "a generator",
        "an optimizer",
        "torch.optim.Adam(",
    ),
    "fit: an optimizer's name": (
        lambda _: run(optimizer="adam"),
        "'adam'",
        "an optimizer",
        "torch.optim.Adam(",
    ),
    "fit: a loss's name": (lambda _: run(loss_fn="mse"), "'mse'", "a function", "nn.CrossEntropyLoss()"),
    "fit: a state dict": (
        lambda _: run(model=model().state_dict(), optimizer=adam()),
        "an OrderedDict",
        "torch.nn.Module",
        "the order is",
    ),
    "fit: a share for validation": (lambda _: run(validation=0.2), "0.2", "(inputs, targets)", "DataLoader("),
    "fit: the class Step": (lambda _: run(step=Step), "the class Step", "a Step", "Step(…)"),
    "fit: a list of epochs": (lambda _: run(epochs=[0, 1]), "list", "a whole number", "passes over the data"),
    "fit: epochs down below 0": (
        lambda _: run(epochs=range(3, -2, -1)),
        "-2",
        "counted from 0",
        "range(3, 10)",
    ),
    "fit: all left out by drop_last": (
        lambda _: run(batches=DataLoader(TensorDataset(X, Y), 64, drop_last=True)),
        "the batches are empty",
        "at least one batch",
        "Give",
    ),
    "fit: Batches of inputs alone": (
        lambda _: run(batches=Batches(X, batch_size=4)),
        "a tuple of 1",
        "a pair (inputs, targets)",
        "return two things",
    ),
    "fit: an AutoSave outside of with": (
        lambda _: on(lambda m, o: run(model=m, optimizer=o, autosave=AutoSave("runs", model=m, optimizer=o))),
        "not entered",
        "around the loop",
        "with AutoSave(",
    ),
    "evaluate: loss and batches swapped": (
        lambda _: evaluate(MLP(6, 4), CE, PAIR, "cpu"),
        "a CrossEntropyLoss",
        "(inputs, targets)",
        "DataLoader(",
    ),
    # a step
    "Step: LBFGS": (
        lambda _: Step(torch.optim.LBFGS(model().parameters())),
        "LBFGS",
        "through a closure",
        "use SGD or Adam",
    ),
    "Step: two norms": (
        lambda _: Step(adam(), clip_norm=torch.ones(2)),
        "float32 [2]",
        "a number above 0",
        "the largest norm",
    ),
    "Step: float32": (
        lambda _: Step(adam(), amp=torch.float32),
        "torch.float32",
        "not a precision",
        "'bf16'",
    ),
    "a step: the loss's number": (lambda _: Step(adam())(0.5), "0.5", GRADIENT, "without item()"),
    "a step: a loss without gradient": (
        lambda _: Step(adam())(torch.tensor(1.0)),
        "float32 []",
        GRADIENT,
        "detach()",
    ),
    "a step: a loss for each sample": (
        lambda _: on(lambda m, o: Step(o)(m(X))),
        "[8, 4]",
        GRADIENT,
        "reduction='none'",
    ),
    "a step: of no samples": (
        lambda _: on(lambda m, o: Step(o, accumulate=2)(m(X).mean(), 0)),
        "size=0",
        "how many samples",
        "len(targets)",
    ),
    # a captured step
    "captured_step: inputs in a list": (
        lambda _: on(lambda m, o: captured_step(m, CE, o, [X], Y)),
        "a list of 1",
        ONE_TENSOR,
        "torch.stack(inputs)",
    ),
    "captured_step: two inputs": (
        lambda _: on(lambda m, o: captured_step(m, CE, o, (X, X), Y)),
        "a tuple of 2",
        ONE_TENSOR,
        "torch.as_tensor(inputs)",
    ),
    "captured_step: a generator alone": (
        lambda _: on(lambda m, o: captured_step(m, CE, o, X, Y, generators=torch.Generator())),
        "a Generator",
        GENERATOR,
        "give [torch.Generator(device)]",
    ),
    "captured_step: seeds": (
        lambda _: on(lambda m, o: captured_step(m, CE, o, X, Y, generators=[0])),
        "a list of 1 (0)",
        GENERATOR,
        "give [torch.Generator(device)]",
    ),
    "captured_step: called with a loader": (
        lambda _: on(lambda m, o: captured_step(m, CE, o, X, Y)(PAIR, None)),
        "a list of 1",
        ONE_TENSOR,
        "torch.as_tensor(inputs)",
    ),
    "captured_step: called with a list of targets": (
        lambda _: on(lambda m, o: captured_step(m, CE, o, X, Y)(X, Y.tolist())),
        "a list of 8",
        "a tensor [N, …]",
        "torch.as_tensor(targets)",
    ),
    # devices
    "to_device: a class": (lambda _: to_device(MLP, "cpu"), "the class MLP", CONTAINERS, "MLP(…)"),
    "to_device: an optimizer": (
        lambda _: to_device(adam(), "cpu"),
        "an Adam",
        CONTAINERS,
        "model.to(device)",
    ),
    "to_device: a loader": (
        lambda _: to_device(loaded(), "cpu"),
        "a DataLoader",
        CONTAINERS,
        "single batches",
    ),
    "to_device: Batches": (
        lambda _: to_device(Batches(X, Y, batch_size=4), "cpu"),
        "a Batches",
        CONTAINERS,
        "single batches",
    ),
    "to_device: a dataset": (
        lambda _: to_device(TensorDataset(X, Y), "cpu"),
        "a TensorDataset",
        CONTAINERS,
        "single batches",
    ),
    "to_device: a set": (
        lambda _: to_device({X}, "cpu"),
        "a set",
        CONTAINERS,
        "a list instead of a generator",
    ),
    "to_device: a generator in a batch": (
        lambda _: to_device([X, (x for x in X)], "cpu"),
        "a generator",
        CONTAINERS,
        "a list instead of a generator",
    ),
    "tensor_devices: a class": (lambda _: tensor_devices(MLP), "the class MLP", CONTAINERS, "MLP(…)"),
    "tensor_devices: a loader": (
        lambda _: tensor_devices(loaded()),
        "a DataLoader",
        CONTAINERS,
        "single batches",
    ),
    "devices_of: parameters()": (
        lambda _: devices_of(model().parameters()),
        "a generator",
        CONTAINERS,
        "a list instead of a generator",
    ),
    "synchronize: None": (lambda _: synchronize(None), "None", "a device", "give 'cpu'"),
    "choose_device: a bool": (
        lambda _: choose_device(True),
        "'True'",
        "not the name of a device",
        "On this machine",
    ),
    # data and models
    "Batches: a dataset": (
        lambda _: Batches(TensorDataset(X, Y), batch_size=4),
        "TensorDataset",
        "must be a tensor",
        "Batches(inputs, targets, batch_size=…)",
    ),
    "Batches: a pair": (
        lambda _: Batches((X, Y), batch_size=4),
        "tuple",
        "must be a tensor",
        "Batches(inputs, targets, batch_size=…)",
    ),
    "Batches: a seed": (
        lambda _: Batches(X, batch_size=4, generator=0),
        "generator is 0",
        "a torch.Generator",
        "manual_seed(0)",
    ),
    "load_fashion_mnist: a file": (
        lambda _: load_fashion_mnist(HERE),
        HERE.name,
        "Not a directory",
        "Without a folder",
    ),
    "MLP: a text": (lambda _: MLP("784", 10), "'784'", "not a whole number", "MLP(4, 8, 3)"),
    "measure: repeats in a text": (
        lambda _: measure(lambda: 0, device="cpu", repeats="3"),
        "'3'",
        "not a whole number",
        "repeats=20",
    ),
    # checkpoints and weights
    "save_checkpoint: path and model swapped": (
        lambda folder: save_checkpoint(model(), model=folder, epoch=1),
        "a Sequential",
        "the name of a file",
        "a pathlib.Path",
    ),
    "save_checkpoint: the class": (
        lambda folder: saved(folder, model=MLP),
        "the class MLP",
        "the model",
        NEEDED,
    ),
    "save_checkpoint: a state dict": (
        lambda folder: saved(folder, model=MLP(6, 4).state_dict()),
        "with the keys 'layers.0.weight'",
        "the model is an OrderedDict",
        NEEDED,
    ),
    "save_checkpoint: a range": (
        lambda folder: saved(folder, epoch=range(3)),
        "range(0, 3)",
        "whole number",
        "0 or more",
    ),
    "save_checkpoint: a function": (
        lambda folder: saved(folder, extra={"f": print}),
        "extra['f']",
        "builtin_function",
        "plain values",
    ),
    "load_checkpoint: what is in a file": (
        lambda folder: load_checkpoint(saved(folder).read_bytes()),
        "a bytes",
        "the name of a file",
        "a pathlib.Path",
    ),
    "load_checkpoint: a list": (
        lambda folder: load_checkpoint([saved(folder)]),
        "a list of 1",
        "the name of a file",
        "a pathlib.Path",
    ),
    "load_checkpoint: a program": (
        lambda _: load_checkpoint(HERE),
        HERE.name,
        "not a checkpoint",
        "Copy it again",
    ),
    "latest: a file": (
        lambda folder: latest(saved(folder)),
        "It is a file",
        "give its folder",
        "load_checkpoint(path)",
    ),
    "latest: a number as pattern": (
        lambda folder: latest(folder, pattern=3),
        "pattern is 3",
        "a pattern of names",
        "'*.safetensors'",
    ),
    "latest: a pattern with a folder": (
        lambda folder: latest(folder, pattern="runs/*"),
        "'runs/*'",
        "without folders",
        "'*.safetensors'",
    ),
    "resume: a path": (
        lambda folder: resume(saved(folder), model=MLP(6, 4)),
        "Path",
        "a Checkpoint",
        "load_checkpoint(path)",
    ),
    "resume: another optimizer": (
        lambda folder: resume(load_checkpoint(saved(folder)), model=MLP(6, 4), optimizer=adam()),
        "nothing was loaded",
        "no parameter of this model",
        "build it from model.parameters()",
    ),
    "AutoSave: the class": (
        lambda _: saves(model=MLP, optimizer=adam()),
        "the class MLP",
        "the model",
        NEEDED,
    ),
    "AutoSave: an optimizer's class": (
        lambda _: saves(optimizer=torch.optim.Adam),
        "the class Adam",
        "the optimizer",
        "param_groups",
    ),
    "AutoSave: another optimizer": (
        lambda _: saves(optimizer=adam()),
        "the optimizer",
        "no parameter of this model",
        "build it from",
    ),
    "AutoSave: numbers for names": (lambda _: saves(extra={1: 2}), "is 1", "a string", "{'scaler': scaler}"),
    "AutoSave: minutes in a text": (lambda _: saves(every_minutes="5"), "'5'", "a number", "more than 0"),
    "AutoSave: no with": (lambda _: saves().epochs(3), "not entered", "around the loop", "with AutoSave("),
}


@pytest.mark.filterwarnings("ignore:there are no CUDA graphs")
@pytest.mark.parametrize("case", OTHERS)
def test_other_functions(case, tmp_path):
    call, *words = OTHERS[case]
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        call(tmp_path)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


LEGAL: dict[str, dict[str, Any]] = {
    "class probabilities": batches(X, torch.softmax(X[:, :4], 1)),
    "ignored labels": batches(X, torch.where(Y == 0, -100, Y)),
    "a label of one's own to ignore": batches(X, Y + 1) | {"loss_fn": nn.CrossEntropyLoss(ignore_index=4)},
    "bytes as labels": batches(X, Y.byte()),
    "weights of classes": {"loss_fn": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]))},
    "smoothed labels": {"loss_fn": nn.CrossEntropyLoss(label_smoothing=0.1)},
    "sums of losses": {"loss_fn": nn.CrossEntropyLoss(reduction="sum")},
    "a list as a pair": {"batches": [[X, Y]]},
    "batches in a tuple": {"batches": ((X, Y), (X, Y), (X, Y))},
    "Batches": {
        "batches": Batches(X, Y, batch_size=4, shuffle=True),
        "validation": Batches(X, Y, batch_size=4),
    },
    "a generator for one epoch": {"batches": iter(PAIR), "epochs": 1},
    "validation by a generator for one epoch": {"validation": iter(PAIR), "epochs": 1},
    "an iterable data set of batches": {"batches": TwoPasses()},
    "a loader that passes batches on": {"batches": DataLoader(TwoPasses(), batch_size=None)},
    "a loader that shuffles": {"batches": loaded(shuffle=True)},
    "a loader with a generator": {"batches": loaded(shuffle=True, generator=torch.Generator())},
    "a loss of one's own": {"loss_fn": lambda outputs, targets: F.cross_entropy(outputs, targets)},
    "a loss with a penalty": {"loss_fn": lambda o, t: CE(o, t) + 1e-3 * o.square().mean()},
    "a part of a function as loss": {"loss_fn": partial(F.cross_entropy, label_smoothing=0.1)},
    "a loss that squeezes": regression(X[:, 0], loss=lambda o, t: F.mse_loss(o.squeeze(1), t)),
    "a loss that pairs all": regression(X[:, 0], loss=lambda o, t: (o - t[None, :]).square().mean()),
    "a loss that drops missing values": regression(
        torch.where(X[:, :1] > 0, X[:, :1], torch.nan),
        loss=lambda o, t: F.mse_loss(o[~t.isnan()], t[~t.isnan()]),
    ),
    "a model's tuple": {"model": Returns(lambda o: (o, o), 6, 4), "loss_fn": lambda o, t: CE(o[0], t)},
    "a model's dict": {"model": Returns(lambda o: {"y": o}, 6, 4), "loss_fn": lambda o, t: CE(o["y"], t)},
    "inputs in a dict": {"model": Takes(lambda layer, i: layer(i["x"]))} | batches({"x": X}, Y),
    "inputs in a tuple": {"model": Takes(lambda layer, i: layer(i[0] + i[1]))} | batches((X, X), Y),
    "inputs that miss values": {"model": Takes(lambda layer, i: layer(i.nan_to_num()))}
    | batches(X * torch.nan, Y),
    "embeddings of integers": {"model": Takes(lambda e, i: e(i).mean(1), nn.Embedding(5, 4))}
    | batches(torch.ones(8, 2, dtype=torch.long), Y),
    "a column for logits": regression(COLUMN, loss=nn.BCEWithLogitsLoss()),
    "several labels": {"loss_fn": nn.BCEWithLogitsLoss()} | batches(X, F.one_hot(Y).float()),
    "a target for each pixel": {"model": nn.Conv2d(1, 4, 1)} | batches(IMAGES, IMAGES[:, 0].long()),
    "an autoencoder": {"model": MLP(6, 6), "loss_fn": MSE} | batches(X, X),
    "outputs without a column": regression(X[:, 0]) | {"model": Returns(lambda o: o.squeeze(1), 6, 1)},
    "one sample": {"model": MLP(6, 4)} | batches(X[:1], Y[:1]),
    "images for MLP": {"model": MLP(6, 4), "batches": [(X.view(8, 2, 3), Y)], "validation": PAIR},
    "float64 throughout": {"model": model().double()} | batches(X.double(), Y),
    "validation of another size": {"validation": [(X[:3], Y[:3])]},
    "validation with labels of its own": {"batches": [(X[:2], Y[:2])], "validation": PAIR},
    "no epochs": {"epochs": 0, "validation": PAIR},
    "epochs from NumPy": {"epochs": np.int64(2)},
    "epochs as a range": {"epochs": range(3, 5)},
    "batches that are accumulated": stepped(accumulate=3),
    "a device object": {"device": torch.device("cpu")},
    "a scheduler of warmup and decay": scheduled(
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, total_iters=1), lr_scheduler.ExponentialLR(o, 0.9)], [1]
        )
    ),
    "one cycle in steps": stepped(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6), batches=PAIR * 3),
    "a plateau without validation": scheduled(lr_scheduler.ReduceLROnPlateau),
}


@pytest.mark.parametrize("case", LEGAL)
def test_unusual_calls_stay_legal(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = run(**LEGAL[case])
    epochs = LEGAL[case].get("epochs", 2)
    assert len(history.train_loss) == (len(epochs) if isinstance(epochs, range) else epochs)


def test_a_frozen_layer_is_legal():
    trained = model()
    trained[0].requires_grad_(False)
    before = trained[0].weight.clone()
    run(model=trained)
    run(model=trained, optimizer=torch.optim.SGD(trained[3].parameters(), lr=0.1))
    assert torch.equal(before, trained[0].weight)


def test_a_look_at_validation_changes_no_random_number():
    """The validation data are unlike those trained on, so that one batch is evaluated beforehand."""

    def weights(**options: Any) -> list[torch.Tensor]:
        trained = seeded(lambda: Returns(lambda outputs: outputs + torch.rand(8, 1)[: len(outputs)], 6, 4))
        torch.manual_seed(2)
        run(model=trained, batches=loaded(shuffle=True), epochs=1, **options)
        return list(trained.parameters())

    for validation in (DataLoader(TensorDataset(X, Y), 4, shuffle=True), [(X.view(8, 2, 3), Y)]):
        assert all(map(torch.equal, weights(validation=validation), weights()))


def test_weights_that_the_last_step_ruins_are_not_returned():
    trained = MLP(6, 4)
    with pytest.raises(NonFiniteLossError, match=r"'layers.0.weight' are not finite after epoch 1"):
        run(
            model=trained,
            optimizer=torch.optim.SGD(trained.parameters(), lr=1e38),
            epochs=1,
            batches=[(X * 1e3, Y)],
        )


def test_a_validation_loss_that_is_not_finite_ends_the_run():
    """In a batch that was not looked at beforehand."""
    with pytest.raises(NonFiniteLossError, match="the validation loss is nan after epoch 1"):
        run(validation=[(X, Y), (X * torch.nan, Y)])
