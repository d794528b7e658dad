"""Features and head apart, two optimizers, early stopping on a part of the training data."""

import copy

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset, random_split

from gpulesson.device import choose_device

digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
train_set = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
test_set = TensorDataset(torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test))
torch.manual_seed(0)
device = choose_device()
part, held_out = random_split(train_set, [0.8, 0.2])
features = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1)).to(device)
head = torch.nn.Linear(32, 10, device=device)
optimizers = [torch.optim.Adam(features.parameters(), lr=1e-2), torch.optim.SGD(head.parameters(), lr=0.5)]


def right_answers(data):
    features.eval(), head.eval()
    with torch.no_grad():
        return sum(
            (head(features(inputs.to(device))).argmax(1) == targets.to(device)).sum().item()
            for inputs, targets in DataLoader(data, batch_size=128)
        )


best, kept = -1, None
for _ in range(8):
    features.train(), head.train()
    for inputs, targets in DataLoader(part, batch_size=64, shuffle=True):
        inputs, targets = inputs.to(device), targets.to(device)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(head(features(inputs)), targets)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    now = right_answers(held_out)
    if now > best:
        best, kept = now, copy.deepcopy((features.state_dict(), head.state_dict()))

features.load_state_dict(kept[0])
head.load_state_dict(kept[1])
count = right_answers(test_set)
print(f"held-out accuracy {best / len(held_out):.4f}")
print(f"accuracy {count / len(test_set):.4f}")
