"""Exercise 4, solved: the training loop, its test, and the run."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def train_step(model, inputs, targets, loss_fn, optimizer, device):
    model.train()
    inputs, targets = inputs.to(device), targets.to(device)
    outputs = model(inputs)
    loss = loss_fn(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()  # it waits; lesson 11 says when that costs time


def accuracy(model, batches, device):
    model.eval()
    right = rows = 0
    with torch.no_grad():
        for inputs, targets in batches:
            inputs, targets = inputs.to(device), targets.to(device)
            right += (model(inputs).argmax(dim=1) == targets).sum()
            rows += len(targets)
    right = int(right)  # read once, after all batches
    return right / rows


def run(model, train_set, test_set, device, epochs):
    model.to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = DataLoader(train_set, batch_size=32, shuffle=True)
    for _ in range(epochs):
        for inputs, targets in batches:
            train_step(model, inputs, targets, loss_fn, optimizer, device)
    return accuracy(model, DataLoader(test_set, batch_size=32), device)
