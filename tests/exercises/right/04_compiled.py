"""The package's own helpers, and a compiled model."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpulesson.data import Batches
from gpulesson.device import choose_device
from gpulesson.evaluation import evaluate
from gpulesson.training import fit

digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    digits.data / 16, digits.target, test_size=0.2, random_state=0
)
device = choose_device()
train = (torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
test = (torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test))

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10)
).to(device)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
validation = Batches(*test, batch_size=100)
history = fit(
    model,
    Batches(*train, batch_size=64, shuffle=True),
    loss_fn,
    optimizer,
    device,
    epochs=8,
    validation=validation,
    compile=True,
)
print(history)
result = evaluate(torch.compile(model, fullgraph=True), validation, loss_fn, device)
print(f"accuracy {result.accuracy:.4f} of {result.samples} samples")
