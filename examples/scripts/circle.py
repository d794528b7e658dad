"""Learn which points lie in a circle, on the CPU: python circle.py"""

import torch
from torch import nn

torch.manual_seed(0)
points = torch.randn(2000, 2)
labels = (points.norm(dim=1) < 1.2).long()

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(10):
    total = torch.zeros(())
    for inputs, targets in zip(points.split(100), labels.split(100), strict=True):
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
print(f"loss {total.item() / 20:.4f}")

predicted = model(points).argmax(dim=1).numpy()
print(f"right: {(predicted == labels.numpy()).mean():.1%}")
