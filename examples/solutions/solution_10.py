"""Exercise 10, solved: no loss keeps its graph, and the evaluation records none."""

import torch


def train(model, optimizer, loss_fn, batches):
    model.train()
    losses = []
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return sum(losses) / len(losses)


def evaluate(model, loss_fn, batches):
    model.eval()
    total = rows = 0
    with torch.inference_mode():
        for inputs, labels in batches:
            total += loss_fn(model(inputs), labels) * len(labels)
            rows += len(labels)
    return total / rows
