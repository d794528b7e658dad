"""Exercise 4: bring this loop to a device, and make its accuracy right."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset


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

torch.manual_seed(0)
model = Classifier_MLP(in_dim=64, hidden_dim=32, out_dim=10)  # <- diagnosis: model-on-cpu
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for _ in range(10):
    for inputs, targets in DataLoader(train_set, batch_size=64):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

accuracies = []
for inputs, targets in DataLoader(test_set, batch_size=64):
    outputs = model(inputs)  # <- diagnosis: gradients-while-evaluating, missing-eval
    accuracies.append((outputs.argmax(dim=1) == targets).float().mean().item())
print("parameters on", next(model.parameters()).device)
print(f"accuracy {sum(accuracies) / len(accuracies):.4f}")  # <- diagnosis: mean-of-batch-means
