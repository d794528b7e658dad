"""torch.accelerator, gradients set to None by hand, a learning rate schedule."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


class Classifier_MLP(torch.nn.Module):
    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.hidden = torch.nn.Linear(in_dim, hidden_dim)
        self.dropout = torch.nn.Dropout(0.2)
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
model = Classifier_MLP(64, 32, 10).to(device)
loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.05)
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
running = []
for _ in range(8):
    model.train()
    for batch in DataLoader(train_set, batch_size=64, shuffle=True):
        inputs, targets = (part.to(device) for part in batch)
        for parameter in model.parameters():
            parameter.grad = None
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    scheduler.step()
    running.append(loss.item())

model.eval()
correct = samples = 0
with torch.no_grad():
    for inputs, targets in DataLoader(test_set, batch_size=100):
        inputs, targets = inputs.to(device), targets.to(device)
        correct += (model(inputs).softmax(dim=1).argmax(dim=1) == targets).sum().item()
        samples += len(targets)
torch.accelerator.synchronize()
print(f"Test accuracy = {correct / samples:.4f} ({correct}/{samples})")
