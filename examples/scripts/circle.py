"""Learn which points lie in a circle, on the CPU: python circle.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
points = torch.randn(2000, 2)
labels = (points.norm(dim=1) < 1.2).long()
loader = DataLoader(TensorDataset(points, labels), batch_size=100)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(10):
    for inputs, targets in loader:
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss of the last batch: {loss.item():.4f}")

predicted = model(points).argmax(dim=1).numpy()
print(f"right: {(predicted == labels.numpy()).mean():.1%}")
