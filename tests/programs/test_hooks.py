"""What listeners see of a program, and that PyTorch is afterwards what it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.data import Batches
from gpulesson_tools.programs import hooks
from gpulesson_tools.programs.hooks import Hooks

EVENTS = [*hooks._MOMENTS]


def listener(calls: list[str], moments=("before", "after", "end"), events=EVENTS) -> object:
    """Return a listener that notes its calls, but of functions only ``relu``."""

    def note(name: str):
        def method(call):
            if not name.endswith("_function") or call.name == "relu":
                calls.append(name)

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


def test_listeners_see_each_event_of_a_training_step_in_order():
    calls: list[str] = []
    with Hooks(listener(calls, moments=["after"])):
        train()
    made = ["after_new_module"] * 2
    assert calls == [*made, "after_new_optimizer", "after_from_numpy", "after_new_loader", "after_epoch",
                    "after_row", "after_batch", "after_zero_grad", "after_module", "after_module",
                    "after_function", "after_backward", "after_step", *calls[14:]]  # fmt: skip
    assert set(calls[14:]) <= {"after_batch", "after_function"}


def test_before_comes_before_and_the_end_comes_also_after_an_error():
    calls: list[str] = []
    model = nn.Linear(2, 1)
    with Hooks(listener(calls, events=["module"])):
        model(torch.ones(1, 2))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
    assert calls == ["before_module", "end_module", "after_module", "before_module", "end_module"]


def test_listeners_see_the_error_of_a_function():
    errors = []

    class Listener:
        def end_function(self, call):
            errors.append((call.name, type(call.error)))

    with Hooks(Listener()), pytest.raises(RuntimeError):
        torch.ones(2).matmul(torch.ones(3))
    assert errors[-1] == ("matmul", RuntimeError)


def test_listeners_see_batches():
    calls: list[str] = []
    with Hooks(listener(calls, events=["cut"])):
        sizes = [len(x) for x, _ in Batches(torch.ones(5, 1), torch.ones(5), batch_size=2)]
    assert sizes == [2, 2, 1] and calls == ["after_cut"] * 3


def test_the_first_listener_comes_first():
    calls: list[str] = []
    one, other = (listener([], events=[]) for _ in range(2))
    type(one).after_module, type(other).after_module = (
        staticmethod(lambda call, name=name: calls.append(name)) for name in "ab"
    )
    with Hooks(one, other):
        nn.Identity()(1)
    assert calls == ["a", "b"]


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
def test_a_method_that_would_never_be_called_is_refused(name):
    listener = type("Listener", (), {name: print})()
    with pytest.raises(AttributeError, match=rf"Listener\.{name} would never be called"):
        Hooks(listener)
