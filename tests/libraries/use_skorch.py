"""A network is fitted, scored and saved as a classifier of scikit-learn."""

import numpy as np
import torch
from sklearn.model_selection import cross_val_score
from skorch import NeuralNetClassifier
from torch import nn

LIBRARY = "skorch"


def train(device):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(48, 8)).astype("float32")
    y = (X[:, 0] > 0).astype("int64")
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.01,
        max_epochs=3,
        batch_size=16,
        device=device,
        verbose=0,
    )
    net.fit(X, y)
    assert next(net.module_.parameters()).device.type == device
    before = net.predict_proba(X)
    net.save_params(f_params="params.pt", f_optimizer="optimizer.pt")
    net.initialize().load_params(f_params="params.pt", f_optimizer="optimizer.pt")
    scores = cross_val_score(net, X, y, cv=3)
    return net.score(X, y), torch.from_numpy(before), torch.from_numpy(net.predict_proba(X)), scores.tolist()
