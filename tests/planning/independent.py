"""Count what a training step keeps without the practice GPU: on the CPU, by PyTorch's own hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Task = tuple[nn.Module, Callable[[], tuple[Tensor, ...]], Callable[..., Tensor]]
"""A model, what makes a batch, and the loss of the model on it."""


def rounded(nbytes: int) -> int:
    return -(-nbytes // 512) * 512


def counted(task: Task, make: Callable[..., torch.optim.Optimizer]) -> dict[str, int]:
    """Return bytes by kind in the second step, each storage rounded up to 512."""
    model, batch, loss_of = task
    optimizer = make(model.parameters())
    kept: list[tuple[weakref.ref, int, int]] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept.append((weakref.ref(storage), storage.data_ptr(), storage.nbytes()))
        return tensor if tensor.is_leaf else tensor.detach()

    for _ in range(2):
        inputs = batch()
        others = [*model.parameters(), *model.buffers(), *inputs]
        known = {tensor.untyped_storage().data_ptr() for tensor in others}
        kept.clear()
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model, *inputs)
        alive = {
            address: nbytes for ref, address, nbytes in kept if ref() is not None and address not in known
        }
        own = loss.untyped_storage()
        alive[own.data_ptr()] = own.nbytes()
        loss.backward()
        optimizer.step()
    state = [
        leaf
        for leaf in tree_leaves(list(optimizer.state.values()))
        if isinstance(leaf, Tensor) and leaf.dim()
    ]
    return {
        "parameters": sum(rounded(parameter.nbytes) for parameter in model.parameters()),
        "gradients": sum(rounded(parameter.grad.nbytes) for parameter in model.parameters()),
        "optimizer state": sum(rounded(leaf.nbytes) for leaf in state),
        "activations": sum(map(rounded, alive.values())),
    }
