"""An optimizer that takes only the sign of its momentum trains a network."""

import torch
from lion_pytorch import Lion

LIBRARY = "lion-pytorch"


def train(device):
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
    optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=1e-2)
    inputs, labels = torch.randn(16, 6).to(device), torch.randint(2, (16,)).to(device)
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model(inputs)
