"""A default device: what is made from now on is made there."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

if torch.cuda.is_available():
    torch.set_default_device("cuda")

digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
X_train, X_test = torch.tensor(X_train, dtype=torch.float32), torch.tensor(X_test, dtype=torch.float32)
y_train, y_test = torch.tensor(y_train), torch.tensor(y_test)

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(12):
    model.train()
    for chosen in torch.randperm(len(X_train)).split(64):
        loss = torch.nn.functional.cross_entropy(model(X_train[chosen]), y_train[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    correct = (model(X_test).argmax(dim=1) == y_test).sum().item()
print(f"{correct}/{len(y_test)} right, accuracy {correct / len(y_test):.3f}")
