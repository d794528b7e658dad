"""Learn which points lie in a circle."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
points = torch.randn(2500, 2)
labels = (points.norm(dim=1) < 1.2).long()
train, test = TensorDataset(points[:2000], labels[:2000]), points[2000:]
loader = DataLoader(train, batch_size=100, shuffle=True)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(10):
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss of the last batch: {loss.item():.4f}")

predicted = model(test.to(device)).argmax(dim=1).cpu().numpy()
right = (predicted == labels[2000:].numpy()).mean()
print(f"right on 500 new points: {right:.1%}")
