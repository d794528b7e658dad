"""A network's weights are kept in eight bits, and another is trained with rounding simulated."""

import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from torchao.quantization.qat import FakeQuantizedLinear, IntxFakeQuantizeConfig, QATConfig

LIBRARY = "torchao"


def train(device):
    def network():
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)

    small, trained = network(), network()
    inputs = torch.randn(8, 64).to(device)
    plain = small(inputs)
    quantize_(small, Int8WeightOnlyConfig())
    assert small[0].weight.device.type == device
    with torch.no_grad():
        rounded = small(inputs)

    weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    quantize_(trained, QATConfig(weight_config=weights, step="prepare"))
    assert isinstance(trained[0], FakeQuantizedLinear)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = nn.functional.mse_loss(trained(inputs), torch.zeros(8, 32, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return plain, rounded, losses
