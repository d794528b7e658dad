"""What listeners are told of a program, and that PyTorch is afterwards what it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.data import Batches
from gpulesson_tools.programs import hooks
from gpulesson_tools.programs.hooks import Hooks

EVENTS = [*hooks._MOMENTS]


def listener(told: list[str], moments=("before", "after", "end"), events=EVENTS) -> object:
    """Return a listener that notes whatever it is told, but of functions only ``relu``."""

    def note(name: str):
        def method(call):
            if not name.endswith("_function") or call.name == "relu":
                told.append(name)

        return method

    names = [f"{each}_{event}" for each in moments for event in events if each in hooks._MOMENTS[event]]
    return type("Listener", (), {name: staticmethod(note(name)) for name in names})()


def train() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters())
    for (x,) in DataLoader(TensorDataset(torch.from_numpy(torch.ones(1, 2).numpy()))):
        optimizer.zero_grad()
        torch.relu(model(x)).sum().backward()
        optimizer.step()


def test_each_event_of_a_training_step_is_told_in_its_order():
    told: list[str] = []
    with Hooks(listener(told, moments=["after"])):
        train()
    made = ["after_new_module"] * 2
    assert told == [*made, "after_new_optimizer", "after_from_numpy", "after_new_loader", "after_epoch",
                    "after_row", "after_batch", "after_zero_grad", "after_module", "after_module",
                    "after_function", "after_backward", "after_step", *told[14:]]  # fmt: skip
    assert set(told[14:]) <= {"after_batch", "after_function"}


def test_before_comes_before_and_the_end_comes_also_after_an_error():
    told: list[str] = []
    model = nn.Linear(2, 1)
    with Hooks(listener(told, events=["module"])):
        model(torch.ones(1, 2))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
    assert told == ["before_module", "end_module", "after_module", "before_module", "end_module"]


def test_a_function_that_fails_is_told_with_its_error():
    errors = []

    class Listener:
        def end_function(self, call):
            errors.append((call.name, type(call.error)))

    with Hooks(Listener()), pytest.raises(RuntimeError):
        torch.ones(2).matmul(torch.ones(3))
    assert errors[-1] == ("matmul", RuntimeError)


def test_batches_are_told_of_too():
    told: list[str] = []
    with Hooks(listener(told, events=["cut"])):
        sizes = [len(x) for x, _ in Batches(torch.ones(5, 1), torch.ones(5), batch_size=2)]
    assert sizes == [2, 2, 1] and told == ["after_cut"] * 3


def test_the_first_listener_comes_first():
    told: list[str] = []
    one, other = (listener([], events=[]) for _ in range(2))
    type(one).after_module, type(other).after_module = (
        staticmethod(lambda call, name=name: told.append(name)) for name in "ab"
    )
    with Hooks(one, other):
        nn.Identity()(1)
    assert told == ["a", "b"]


def test_pytorch_is_patched_for_what_is_listened_to_alone_and_is_then_what_it_was():
    def functions() -> list[object]:
        return [getattr(owner, name) for each in hooks._PATCHED.values() for owner, name in each]

    before = functions()
    with Hooks(listener([], events=["backward"])):
        assert sum(a is not b for a, b in zip(before, functions(), strict=True)) == 1
    with pytest.raises(ZeroDivisionError), Hooks(listener([])):
        assert all(a is not b for a, b in zip(before, functions(), strict=True))
        1 / 0  # noqa: B018
    assert functions() == before


@pytest.mark.parametrize("name", ["after_batches", "before_function", "end_step"])
def test_a_method_that_nobody_would_call_is_refused(name):
    listener = type("Listener", (), {name: print})()
    with pytest.raises(AttributeError, match=rf"Listener\.{name}: nobody would ever call it"):
        Hooks(listener)
