"""Dictionaries of tensors move together, and modules read from them and write to them."""

import torch
from tensordict import TensorDict, from_module, tensorclass
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

LIBRARY = "tensordict"


@tensorclass
class Pictures:
    pixels: torch.Tensor
    labels: torch.Tensor


def train(device):
    data = TensorDict({"x": torch.randn(12, 4), "nested": {"y": torch.randint(3, (12,))}}, batch_size=[12])
    data = data.to(device)
    assert data.device.type == device and data["nested", "y"].device.type == device
    model = TensorDictSequential(
        TensorDictModule(nn.Linear(4, 8), ["x"], ["hidden"]),
        TensorDictModule(nn.Sequential(nn.ReLU(), nn.Linear(8, 3)), ["hidden"], ["logits"]),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for part in [*data.split(4), torch.stack([data[0], data[5]]).contiguous()]:
        loss = nn.functional.cross_entropy(model(part.clone())["logits"], part["nested", "y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = from_module(model).detach()
    with (weights * 2).to_module(model):
        doubled = model(data.clone())["logits"]
    pictures = Pictures(torch.rand(5, 3, 2, 2), torch.arange(5), batch_size=[5]).to(device)[::2]
    return losses, weights.flatten_keys().cpu().to_dict(), doubled, pictures.pixels, pictures.labels
