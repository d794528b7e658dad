"""Bayesian optimisation fits a Gaussian process and proposes where to look next."""

import torch
from botorch.acquisition import LogExpectedImprovement, qUpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

LIBRARY = "botorch"


def train(device):
    x = torch.rand(10, 2, dtype=torch.float64).to(device)
    y = -(x - 0.3).square().sum(-1, keepdim=True)
    model = SingleTaskGP(x, y, input_transform=Normalize(d=2), outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    bounds = torch.stack([torch.zeros(2), torch.ones(2)]).to(x)
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    results = [model.posterior(x).mean]
    for acquisition, q in (
        (LogExpectedImprovement(model, best_f=y.max()), 1),
        (qUpperConfidenceBound(model, beta=0.1, sampler=sampler), 2),
    ):
        torch.manual_seed(1)
        results += optimize_acqf(
            acquisition, bounds, q=q, num_restarts=2, raw_samples=8, options={"seed": 0, "maxiter": 10}
        )
    assert all(each.device.type == device for each in results)
    return results
