"""Automatic mixed precision with a gradient scaler."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.device import choose_device

digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
train_set = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
test_set = TensorDataset(torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test))
device = choose_device()
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
).to(device)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
use_amp = device.type == "cuda"
scaler = torch.amp.GradScaler(device.type, enabled=use_amp)
for _ in range(8):
    model.train()
    for inputs, targets in DataLoader(train_set, batch_size=64, shuffle=True):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.float16, enabled=use_amp):
            loss = loss_fn(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
model.eval()
correct = torch.zeros((), dtype=torch.long, device=device)
with torch.inference_mode(), torch.autocast(device.type, dtype=torch.float16, enabled=use_amp):
    for inputs, targets in DataLoader(test_set, batch_size=64):
        correct += (model(inputs.to(device)).argmax(1) == targets.to(device)).sum()
print(f"accuracy {correct.item() / len(test_set):.4f}")
