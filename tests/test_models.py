from __future__ import annotations

import pytest
import torch
from torch import nn

from gpulesson.models import MLP


def test_logits_are_those_of_the_matrix_products():
    torch.manual_seed(0)
    model = MLP(4, 8, 9, 3)
    inputs = torch.randn(5, 4)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    hidden = (inputs @ w1.T + b1).clamp(min=0)
    hidden = (hidden @ w2.T + b2).clamp(min=0)
    torch.testing.assert_close(model(inputs), hidden @ w3.T + b3)


def test_the_last_layer_has_neither_relu_nor_softmax():
    torch.manual_seed(0)
    logits = MLP(4, 16, 3)(torch.randn(200, 4))
    assert logits.min() < 0 and logits.max() > 0
    assert not torch.allclose(logits.sum(1), torch.ones(200))


def test_weights_are_drawn_in_the_order_of_the_layers():
    torch.manual_seed(32)
    model = MLP(4, 8, 9, 3)
    torch.manual_seed(32)
    by_hand = [nn.Linear(4, 8), nn.Linear(8, 9), nn.Linear(9, 3)]
    expected = [parameter for layer in by_hand for parameter in layer.parameters()]
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_images_are_flattened():
    model = MLP(784, 128, 64, 10)
    images = torch.randn(6, 28, 28)
    assert torch.equal(model(images), model(images.reshape(6, 784)))


@pytest.mark.parametrize("sizes", [(), (4,)])
def test_no_layer_at_all_is_refused(sizes):
    with pytest.raises(ValueError, match=r"no layer.*MLP\(4, 8, 3\)"):
        MLP(*sizes)
