"""The averages of a network's weights are kept, used, and put back."""

import torch
from torch_ema import ExponentialMovingAverage

LIBRARY = "torch-ema"


def train(device):
    model = torch.nn.Linear(6, 2).to(device)
    average = ExponentialMovingAverage(model.parameters(), decay=0.9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs, labels = torch.randn(16, 6).to(device), torch.randint(2, (16,)).to(device)
    losses = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()
        losses.append(loss.item())
    with torch.no_grad(), average.average_parameters():
        averaged = model(inputs)
    again = ExponentialMovingAverage(model.parameters(), decay=0.5)
    again.load_state_dict(average.state_dict())
    again.copy_to()
    return losses, averaged, model(inputs)
