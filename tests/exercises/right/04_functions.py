"""Functions, a main guard, functional losses, and max instead of argmax."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset


class Classifier_MLP(torch.nn.Module):
    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.hidden = torch.nn.Linear(in_dim, hidden_dim)
        self.dropout = torch.nn.Dropout(0.2)
        self.out = torch.nn.Linear(hidden_dim, out_dim)

    def forward(self, x):
        return self.out(self.dropout(torch.relu(self.hidden(x))))


def load():
    digits = load_digits()
    X_train, X_test, y_train, y_test = train_test_split(
        digits.data / 16, digits.target, test_size=0.2, random_state=0
    )
    make = lambda X, y: TensorDataset(torch.as_tensor(X).float(), torch.as_tensor(y))  # noqa: E731
    return make(X_train, y_train), make(X_test, y_test)


def train(model, loader, optimizer, device):
    model.train()
    total = torch.zeros((), device=device)
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        total += loss.detach() * len(targets)
    return total.item() / len(loader.dataset)


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    correct = 0
    for inputs, targets in loader:
        _, predictions = torch.max(model(inputs.to(device)), 1)
        correct += int((predictions == targets.to(device)).sum())
    return correct, len(loader.dataset)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load()
    model = Classifier_MLP(64, 32, 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        loss = train(model, DataLoader(train_set, 64, shuffle=True), optimizer, device)
        correct, samples = accuracy(model, DataLoader(test_set, 64), device)
        print(f"loss {loss:.3f}, {correct} of {samples} right")


if __name__ == "__main__":
    main()
