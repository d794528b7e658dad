"""Exercise 3: the model answers once, and every step takes the same answers."""

import torch
import torch.nn.functional as F
from sklearn.model_selection import train_test_split

from gpulesson.data import load_iris
from gpulesson.device import choose_device
from gpulesson.models import MLP


def fit(net, inputs, targets, steps):
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    net.train()
    scores = net(inputs)  # <- diagnosis: backward-twice
    step = 0
    while step < steps:
        adam.zero_grad()
        loss = F.nll_loss(F.log_softmax(scores, dim=1), targets)
        loss.backward()
        adam.step()
        step += 1


device = choose_device()
iris = load_iris(widely_copied=True)
split = train_test_split(iris.features.numpy(), iris.targets.numpy(), test_size=0.2, random_state=33)
X_train, X_test, y_train, y_test = [torch.as_tensor(part, device=device) for part in split]

torch.manual_seed(32)
net = MLP(4, 8, 9, 3).to(device)
fit(net, X_train, y_train, 100)
net.eval()
with torch.inference_mode():
    right = (net(X_test).argmax(1) == y_test).sum().item()
print(f"accuracy {right / len(y_test):.1%}: {right} of {len(y_test)} new flowers")
