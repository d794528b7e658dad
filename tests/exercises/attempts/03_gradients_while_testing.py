"""Exercise 3, an attempt: the accuracy is computed with gradients."""

import torch
from sklearn.model_selection import train_test_split

from gpulesson.data import load_iris
from gpulesson.device import choose_device, devices_of
from gpulesson.models import MLP

device = choose_device()

iris = load_iris(widely_copied=True)
X_train, X_test, y_train, y_test = train_test_split(
    iris.features.numpy(), iris.targets.numpy(), test_size=0.2, random_state=33
)
X_train, X_test = torch.tensor(X_train).to(device), torch.tensor(X_test).to(device)
y_train, y_test = torch.tensor(y_train).to(device), torch.tensor(y_test).to(device)

torch.manual_seed(32)
model = MLP(4, 8, 9, 3).to(device)  # before the optimizer is made
print("parameters on", devices_of(model))
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(1, 101):
    outputs = model(X_train)
    loss = loss_fn(outputs, y_train)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 1:
        print(f"epoch {epoch:>3}  loss {loss.item():.8f}")

model.eval()


def accuracy(X, y):
    return (model(X).argmax(dim=1) == y).sum().item()  # <- diagnosis: gradients-while-evaluating


correct = accuracy(X_test, y_test)
print(f"accuracy {correct / len(y_test):.1%}: {correct} of {len(y_test)} new flowers")
