"""A data loader with two workers and pinned memory."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, Dataset

from gpulesson.device import choose_device


class Digits(Dataset):
    def __init__(self, features, targets):
        self.features, self.targets = features, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.tensor(self.features[index], dtype=torch.float32), int(self.targets[index])


if __name__ == "__main__":
    digits = load_digits()
    X_train, X_test, y_train, y_test = train_test_split(
        digits.data / 16, digits.target, test_size=0.2, random_state=0
    )
    device = choose_device()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    ).to(device)
    loss_fn = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    pin = device.type == "cuda"
    train_loader = DataLoader(
        Digits(X_train, y_train), batch_size=64, shuffle=True, num_workers=2, pin_memory=pin
    )
    test_loader = DataLoader(Digits(X_test, y_test), batch_size=64, num_workers=2, pin_memory=pin)
    for _ in range(5):
        model.train()
        for inputs, targets in train_loader:
            inputs = inputs.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.inference_mode():
        right = sum(
            (model(inputs.to(device)).argmax(dim=1) == targets.to(device)).sum()
            for inputs, targets in test_loader
        )
    print(f"accuracy {right.item() / len(y_test):.2%}")
