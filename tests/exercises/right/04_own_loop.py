"""Slices by hand, an index permutation, and a percentage."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
X_train, X_test = torch.tensor(X_train).float(), torch.tensor(X_test).float()
y_train, y_test = torch.tensor(y_train), torch.tensor(y_test)

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
)
model.to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(10):
    model.train()
    order = torch.randperm(len(X_train))
    for start in range(0, len(order), 50):
        chosen = order[start : start + 50]
        optimizer.zero_grad()
        loss = criterion(model(X_train[chosen].to(device)), y_train[chosen].to(device))
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = 0
        for start in range(0, len(X_test), 50):
            scores = model(X_test[start : start + 50].to(device))
            right += (scores.argmax(1).cpu() == y_test[start : start + 50]).sum().item()
    print(f"epoch {epoch}: test accuracy {100 * right / len(X_test):.2f}%")
