"""Write down the operators of a step from shapes alone: nothing is computed, so that any batch will do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpulesson_tools.planning.recording.cost import Cost, cost
from gpulesson_tools.planning.recording.record import Operation, Place, Record


class Costs(TorchDispatchMode):
    """Notes name and cost of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Cost]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func._overloadpacket.__name__, cost(func, args, kwargs or {}, result)))
        return result

    def of(self, name: str) -> list[Cost]:
        return [each for called, each in self.calls if called == name]


def costs_of(function: Callable[[], Any]) -> Costs:
    with Costs() as costs:
        function()
    return costs


def record_of(costs: Costs) -> Record:
    """Return one step that has these operators."""
    operations = [
        Operation(
            name, each.dtype, each.flop, each.least_flop, each.nbytes, each.launches, 0, "forward", Place()
        )
        for name, each in costs.calls
        if each.launches
    ]
    return Record(operations=operations, ends=[0])


def step_of(
    make: Callable[[], nn.Module],
    batch: Callable[[], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    *,
    training: bool,
    dtype: torch.dtype | None,
) -> Record:
    """Record one step with SGD, or one forward pass, in autocast to `dtype`."""
    with torch.device("meta"):
        model = make().train(training)
    with FakeTensorMode():
        for module in model.modules():
            for name, each in module._parameters.items():
                if each is not None:
                    module._parameters[name] = nn.Parameter(torch.empty(each.shape))
            for name, each in module._buffers.items():
                if each is not None:
                    module._buffers[name] = torch.empty(each.shape, dtype=each.dtype)
        inputs, optimizer = batch(), torch.optim.SGD(model.parameters(), 0.1, foreach=True)

        def step() -> None:
            autocast = torch.autocast("cpu", dtype, enabled=dtype is not None)
            with autocast, torch.set_grad_enabled(training):
                outputs = model(inputs)
                if training:
                    loss = loss_of(outputs)
            if training:
                loss.backward()
                optimizer.step()

        return record_of(costs_of(step))


def bert_large() -> nn.Module:
    """The 24 layers of BERT-large, without embeddings and head."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)


def vit_small() -> nn.Module:
    return torchvision.models.VisionTransformer(224, 16, 12, 6, 384, 1536)


@cache
def published_step(model: str, batch: int, task: str, dtype: str) -> Record:
    if model == "bert_large_512":
        make, shape = bert_large, (batch, 512, 1024)
    else:
        make = vit_small if model == "vit_small_16" else getattr(torchvision.models, model)
        shape = batch, 3, 224, 224

    def loss_of(outputs):
        if outputs.ndim == 3:
            return outputs.sum()
        return F.cross_entropy(outputs, torch.zeros(batch, dtype=torch.int64))

    half = torch.float16 if dtype == "float16" else None
    torch.set_float32_matmul_precision("high" if dtype == "tfloat32" else "highest")
    try:
        return step_of(make, lambda: torch.empty(shape), loss_of, training=task == "training", dtype=half)
    finally:
        torch.set_float32_matmul_precision("highest")
