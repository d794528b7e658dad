"""All data moved once; random batches drawn on the device; every loss kept, without its history."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpulesson.data import Batches
from gpulesson.device import choose_device

device = choose_device()
digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
train = torch.tensor(X_train, dtype=torch.float32).to(device), torch.tensor(y_train).to(device)
test = torch.tensor(X_test, dtype=torch.float32).to(device), torch.tensor(y_test).to(device)

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
).to(device)
loss_fn = torch.nn.NLLLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses, best = [], 0
for _ in range(8):
    model.train()
    for inputs, targets in Batches(*train, batch_size=64, shuffle=True):
        log_probabilities = torch.log_softmax(model(inputs), dim=1)
        loss = loss_fn(log_probabilities, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    model.eval()
    with torch.inference_mode():
        validation = loss_fn(torch.log_softmax(model(test[0]), dim=1), test[1])
        right = (model(test[0]).argmax(dim=1) == test[1]).sum().item()
    best = max(best, right)
print(f"training losses {torch.stack(losses).mean().item():.4f}, validation {validation:.4f}")
print(f"accuracy {right / len(test[1]):.4%}, best epoch {best / len(test[1]):.4%}")
