"""Exercise 4, an attempt: Adam is made before the model is moved."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.device import choose_device


class Classifier_MLP(torch.nn.Module):
    """Logits [N, out_dim] from features [N, in_dim]."""

    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.hidden = torch.nn.Linear(in_dim, hidden_dim)
        self.dropout = torch.nn.Dropout(0.2)  # active in training mode only
        self.out = torch.nn.Linear(hidden_dim, out_dim)

    def forward(self, x):
        return self.out(self.dropout(torch.relu(self.hidden(x))))


digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
train_set = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
test_set = TensorDataset(torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test))

device = choose_device()

torch.manual_seed(0)
model = Classifier_MLP(in_dim=64, hidden_dim=32, out_dim=10)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)  # <- diagnosis: optimizer-before-move
model.to(device)

for _ in range(10):
    model.train()
    for inputs, targets in DataLoader(train_set, batch_size=64, shuffle=True):
        inputs, targets = inputs.to(device), targets.to(device)
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

model.eval()
# the count stays on the device
correct = torch.zeros((), dtype=torch.int64, device=device)
with torch.inference_mode():
    for inputs, targets in DataLoader(test_set, batch_size=64):
        inputs, targets = inputs.to(device), targets.to(device)
        correct += (model(inputs).argmax(dim=1) == targets).sum()
right = correct.item()  # fetched once
print("parameters on", next(model.parameters()).device)
print(f"accuracy {right / len(test_set):.4f}: {right} of {len(test_set)}")
