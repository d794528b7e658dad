"""No false alarms: PyTorch's own operator database, with everything on the practice GPU.

Every operator that CUDA has for float32 must give the plain CPU's values to the bit, forward and backward, on
``cuda:0`` and without an error.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import database
import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map_only

from practice_gpu import practice_gpu

SAMPLES = 10

ROUNDED = ["linalg.cond", "linalg.eigvalsh", "linalg.svdvals", "norm.nuc", "prod"]
"""Operators that PyTorch itself computes in another way where a mode watches: the last digits differ."""

ON_THE_CPU = ["tensor_split"]
"""Operators that want their second tensor on the CPU."""

RANDOM = [
    "bernoulli",
    "cauchy",
    "dropout",
    "empty",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "rand",
    "rrelu",
    "uniform",
]
"""Parts of the names of operators whose values are random or uninitialised: only devices are compared."""


def compare(op: Any, inference: bool) -> Iterator[str | None]:
    """Yield, for every sample of an operator, None or what is wrong."""
    try:
        samples = list(
            islice(
                op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd and not inference),
                SAMPLES,
            )
        )
    except Exception:
        return  # made for a GPU only
    expected = []
    for sample in samples:
        inputs = (sample.input, sample.args, sample.kwargs)
        with suppress(Exception):  # what the CPU cannot do is no question
            expected.append((inputs, run(op, inputs, "cpu")))
    with practice_gpu(force=True), torch.inference_mode(inference):
        found = [attempt(op, inputs) for inputs, _ in expected]
    for (_, theirs), (ours, problem) in zip(expected, found, strict=True):
        yield problem or wrong_values(op, theirs, ours)


def attempt(op: Any, inputs: Any) -> tuple[Any, str | None]:
    """Run one sample on the practice GPU; return its tensors, and what is wrong with their devices."""
    try:
        found = run(op, inputs, "cuda")
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0][:150]
    return found, wrong_devices(op, inputs, found)


def run(op: Any, inputs: Any, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return an operator's tensors, and the gradients of the sum of their absolute values."""
    torch.manual_seed(0)

    def put(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().to(device).requires_grad_(tensor.requires_grad)

    first, args, kwargs = tree_map_only(torch.Tensor, put, inputs)
    if op.name in ON_THE_CPU:
        args, kwargs = inputs[1:]
    results = tensors(called(op)(first, *args, **kwargs))
    if not op.supports_autograd or torch.is_inference_mode_enabled():
        return results, []
    leaves = [t for t in tensors((first, args, kwargs)) if t.requires_grad]
    total = sum(t.abs().sum() for t in results if t.requires_grad)
    if not leaves or not isinstance(total, torch.Tensor):
        return results, []
    return results, list(torch.autograd.grad(total, leaves, allow_unused=True))


def called(op: Any) -> Any:
    """Return what a program would call, now, by its name: the database has the functions of before."""
    with suppress(AttributeError):
        function = functools.reduce(getattr, op.name.split("."), torch)
        if function.__name__ == op.op.__name__:
            return function
    return op.op


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def wrong_devices(op: Any, inputs: Any, found: Any) -> str | None:
    leaves = tree_leaves(inputs)
    if any(isinstance(leaf, torch.device) or leaf == "cpu" for leaf in leaves) or "device" in inputs[2]:
        return None  # it says itself where to
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    places = [{str(t.device) for t in each if t is not None} for each in found]
    return None if places[0] | places[1] <= {"cuda:0"} else f"on {places[0]}, gradients on {places[1]}"


def wrong_values(op: Any, expected: Any, found: Any) -> str | None:
    if any(part in op.name for part in RANDOM):
        return None
    tolerance = 1e-4 if database.full_name(op) in ROUNDED else 0
    for kind, ours, theirs in zip(("values", "gradients"), found, expected, strict=True):
        if len(ours) != len(theirs):
            return f"{len(ours)} {kind}, not {len(theirs)}"
        for one, other in zip(ours, theirs, strict=True):
            try:
                assert_close(one, other, equal_nan=True, rtol=tolerance, atol=tolerance)
            except AssertionError as error:
                return f"{kind}: {error}".splitlines()[0]
    return None


@pytest.mark.slow
@database.SHARES
@pytest.mark.parametrize(
    "inference",
    [
        pytest.param(False, id="forward and backward"),
        pytest.param(True, id="inference mode", marks=pytest.mark.thorough),
    ],
)
def test_every_operator_works_as_on_the_cpu(inference: bool, every: int) -> None:
    right = wrong = 0
    failed: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in database.operators(every):
            if torch.float32 not in set(op.dtypes) & set(op.dtypesIfCUDA):
                continue
            for problem in compare(op, inference):
                if problem is None:
                    right += 1
                else:
                    wrong += 1
                    failed.setdefault(database.full_name(op), problem)
    share = right / (right + wrong)
    print(f"{right} of {right + wrong} samples agree, {share:.2%}; {len(failed)} operators do not")
    for name, problem in failed.items():
        print(f"  {name}: {problem}")
    assert right + wrong > 1500 / every
    assert not failed
