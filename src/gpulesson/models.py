"""The networks that the lessons share."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from gpulesson._arguments import whole_number


class MLP(nn.Module):
    """A multi-layer perceptron: linear layers with a ReLU between each two.

    Parameters
    ----------
    *sizes : int
        Number of values at each stage, from inputs to logits: ``MLP(784, 128, 64, 10)`` takes images of
        28 × 28 = 784 pixels and gives 10 logits.

    Notes
    -----
    The last layer has no softmax: ``CrossEntropyLoss`` wants logits and does that part itself, more exactly.

    Examples
    --------
    >>> import torch
    >>> MLP(784, 128, 64, 10)(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(
                f"MLP{sizes} has no layer: give the sizes from inputs to logits, like MLP(4, 8, 3)"
            )
        for size in sizes:
            whole_number("a size", size, 1, "give the number of values at each stage, like MLP(4, 8, 3)")
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])  # no ReLU after the last layer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits ``[N, sizes[-1]]`` for float inputs ``[N, …]`` with ``sizes[0]`` values a sample."""
        return self.layers(inputs.flatten(1))  # type: ignore[no-any-return]  # [N, 28, 28] -> [N, 784]
