"""Exercise 3: run this on a device, and evaluate the model on the test flowers."""

import torch
from sklearn.model_selection import train_test_split

from gpulesson.data import load_iris
from gpulesson.models import MLP

iris = load_iris(widely_copied=True)
X_train, X_test, y_train, y_test = train_test_split(
    iris.features.numpy(), iris.targets.numpy(), test_size=0.2, random_state=33
)
X_train, X_test = torch.tensor(X_train), torch.tensor(X_test)
y_train, y_test = torch.tensor(y_train), torch.tensor(y_test)

torch.manual_seed(32)
model = MLP(4, 8, 9, 3)
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
