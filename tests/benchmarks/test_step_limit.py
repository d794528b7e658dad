"""The operators of a step: all that compute, with their shapes, and no views."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from step_limit import Operators, Step, computes, group, measure, rows_of


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.rand(64, 784), torch.randint(10, (64,))


def recorded(data, dtype):
    step = Step(*data, 32, dtype)
    with Operators() as operators:
        step()
    return operators.calls


def test_a_step_has_three_layers_forward_and_their_gradients(data):
    names = Counter(
        func.name().removeprefix("aten::").split(".")[0] for func, *_ in recorded(data, "float32")
    )
    assert names["addmm"] == 3
    assert names["mm"] == 3 + 2  # gradients of three weights, and of the inputs of all layers but the first
    assert names["index_select"] == 2 and names["_fused_adam_"] == 1
    assert names["relu"] == names["threshold_backward"] == 2
    assert not {"t", "view", "detach", "alias", "empty", "expand"} & set(names)


def test_autocast_multiplies_in_bfloat16_and_its_casts_count(data):
    calls = recorded(data, "bfloat16")
    types = {args[-1].dtype for func, args, _ in calls if group(func) == "products"}
    assert types == {torch.bfloat16}
    assert len([func for func, *_ in calls if "_to_copy" in func.name()]) > 6


def test_the_products_have_the_flop_of_the_network(data):
    flop = 0
    for func, args, _ in recorded(data, "float32"):
        if group(func) == "products":
            one, other = args[-2:]
            flop += 2 * one.shape[0] * one.shape[1] * other.shape[1]
    weights = [784 * 128, 128 * 64, 64 * 10]
    assert flop == 32 * (6 * sum(weights) - 2 * weights[0])


def test_what_is_kept_is_not_the_models_own(data):
    step = Step(*data, 32, "float32")
    with Operators() as operators:
        first = step().item()
    for func, args, kwargs in operators.calls:  # Adam among them, which changes its arguments
        func(*args, **kwargs)
    again = Step(*data, 32, "float32")
    assert again().item() == first and again().item() == step().item()


@pytest.mark.parametrize("name", ["view", "t", "detach", "empty.memory_format"])
def test_what_only_names_memory_does_not_compute(name):
    packet, _, overload = name.partition(".")
    assert not computes(getattr(getattr(torch.ops.aten, packet), overload or "default"))


def test_the_rows_add_up(data):
    found = measure(Step(*data, 32, "float32"), rounds=2)
    rows = rows_of("a case", found)
    groups, (total, between, whole) = rows[:-3], rows[-3:]
    assert sum(row["alone"] for row in groups) == pytest.approx(total["alone"])
    assert total["inside"] + between["inside"] == pytest.approx(whole["inside"])
    assert whole["ratio"] == pytest.approx(whole["inside"] / total["alone"])
    assert len(found["ratios"]) == 2
