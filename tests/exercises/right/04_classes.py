"""A trainer class; several losses before each step; numpy for the count."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.device import choose_device, to_device


class Trainer:
    def __init__(self, model, device):
        self.device = device
        self.model = model.to(device)
        self.loss_fn = torch.nn.CrossEntropyLoss(reduction="sum").to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.history = []

    def fit(self, train_loader, epochs):
        for _ in range(epochs):
            self.model.train()
            losses = []
            for number, batch in enumerate(train_loader):
                loss = self.step(to_device(batch, self.device))
                losses.append(loss.detach())
                if number % 2 or number == len(train_loader) - 1:  # two batches a step
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            self.history.append(torch.stack(losses).mean().item())

    def step(self, batch):
        inputs, targets = batch
        loss = self.loss_fn(self.model(inputs), targets) / len(targets)
        loss.backward()
        return loss

    def predict(self, loader):
        self.model.eval()
        with torch.inference_mode():
            parts = [self.model(inputs.to(self.device)).argmax(-1).cpu().numpy() for inputs, _ in loader]
        return np.concatenate(parts)


digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
train_set = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
test_set = TensorDataset(torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test))
torch.manual_seed(0)
trainer = Trainer(
    torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
    ),
    choose_device(),
)
trainer.fit(DataLoader(train_set, batch_size=32, shuffle=True), epochs=10)
predictions = trainer.predict(DataLoader(test_set, batch_size=64))
print("losses", trainer.history)
print("Accuracy:", (predictions == y_test).mean())
