"""A trained network learns how sure it is, by Laplace's approximation."""

import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "laplace-torch"


def train(device):
    X, y = torch.randn(32, 4), torch.randint(3, (32,))
    loader = DataLoader(TensorDataset(X.to(device), y.to(device)), batch_size=8)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    results = []
    for weights, structure in ("last_layer", "kron"), ("all", "diag"):
        laplace = Laplace(model, "classification", subset_of_weights=weights, hessian_structure=structure)
        laplace.fit(loader)
        laplace.optimize_prior_precision(n_steps=3)
        results += [laplace.prior_precision, laplace(X[:5].to(device), link_approx="probit")]
    return results
