"""Everything is made inside ``with torch.device(…)``."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpulesson.device import choose_device


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
torch.manual_seed(0)
with choose_device():
    model = Classifier_MLP(64, 32, 10)
    X_train, X_test = (torch.tensor(part, dtype=torch.float32) for part in (X_train, X_test))
    y_train, y_test = torch.tensor(y_train), torch.tensor(y_test)

optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
print("before", model(X_test[:2]).shape)  # a look at the shapes, before any training
for _ in range(60):
    model.train()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(X_train), y_train).backward()
    optimizer.step()
with torch.inference_mode():
    correct = (model.eval()(X_test).argmax(dim=1) == y_test).float().mean()
print("accuracy", correct.item())
