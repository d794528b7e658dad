"""Exercise 3, solved: the loop, the accuracy, and five things on one device."""

import torch
from torch import nn


def train(model, X, y, loss_fn, optimizer, epochs):
    losses = []
    for _ in range(epochs):
        outputs = model(X)
        loss = loss_fn(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def accuracy(model, X, y):
    model.eval()
    with torch.no_grad():
        outputs = model(X)
    predicted = outputs.argmax(dim=1)
    return (predicted == y).sum().item() / len(y)


def run(make_model, X_train, y_train, X_test, y_test, device, epochs, seed):
    torch.manual_seed(seed)
    model = make_model().to(device)
    X_train, y_train = X_train.to(device), y_train.to(device)
    X_test, y_test = X_test.to(device), y_test.to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    train(model, X_train, y_train, loss_fn, optimizer, epochs)
    return accuracy(model, X_test, y_test)
