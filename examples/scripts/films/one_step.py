"""One step of training, and the next."""

import torch
from torch import nn

device = torch.device("cuda")
rows, labels = torch.rand(200, 784), torch.randint(10, (200,))
model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
loss_fn = nn.CrossEntropyLoss()

model.to(device)
optimizer = torch.optim.Adam(model.parameters())
for i in range(0, 200, 100):
    inputs, targets = rows[i : i + 100], labels[i : i + 100]
    inputs, targets = inputs.to(device), targets.to(device)
    outputs = model(inputs)
    loss = loss_fn(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

# variant: as it should be
# variant: the batch is not moved
# -     inputs, targets = inputs.to(device), targets.to(device)
# +     # the batch stays on the CPU
# variant: Adagrad, made before the move
# - model.to(device)
# + optimizer = torch.optim.Adagrad(model.parameters())
# - optimizer = torch.optim.Adam(model.parameters())
# + model.to(device)
# variant: the loss printed in each step
# - print(loss.item())
# +     print(loss.item())
