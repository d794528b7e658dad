"""A Bayesian regression is fitted by variational inference and by Hamiltonian Monte Carlo."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal

LIBRARY = "pyro-ppl"


def model(x, y=None):
    zero = x.new_zeros(())
    weight = pyro.sample("weight", dist.Normal(zero, 1.0))
    bias = pyro.sample("bias", dist.Normal(zero, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(weight * x + bias, 0.3), obs=y)


def train(device):
    x = torch.linspace(-1, 1, 20).to(device)
    y = 2 * x + 0.5
    pyro.clear_param_store()
    pyro.set_rng_seed(1)  # from here on it draws on the device only
    guide = AutoNormal(model)
    inference = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [inference.step(x, y) for _ in range(5)]
    predicted = Predictive(model, guide=guide, num_samples=4)(x)["y"]

    pyro.set_rng_seed(2)
    chain = MCMC(NUTS(model), num_samples=5, warmup_steps=5, disable_progbar=True)
    chain.run(x, y)
    return losses, dict(pyro.get_param_store()), predicted, chain.get_samples()
