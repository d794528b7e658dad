"""A Gaussian process is fitted to a noisy sine, exactly and with inducing points."""

import gpytorch
import torch

LIBRARY = "gpytorch"


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Sparse(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        posterior = gpytorch.variational.CholeskyVariationalDistribution(len(points))
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, posterior))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    forward = Exact.forward


def train(device):
    x = torch.linspace(0, 1, 30).to(device)
    y = torch.sin(6 * x) + 0.1 * torch.randn(30).to(device)
    results = []
    for kind in "exact", "sparse":
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        if kind == "exact":
            model = Exact(x, y, likelihood)
            loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        else:
            model = Sparse(torch.linspace(0, 1, 8))
            loss = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=30)
        loss.to(device).train()
        torch.manual_seed(1)  # from here on it draws on the device only
        optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            negative = -loss(model(x), y)
            negative.backward()
            optimizer.step()
            results.append(negative.item())
        loss.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            predicted = likelihood(model(torch.linspace(0, 1, 7).to(device)))
            results += [predicted.mean, *predicted.confidence_region(), predicted.rsample()]
    return results
