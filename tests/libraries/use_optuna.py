"""A search tries learning rates and widths, and gives up what looks bad early."""

import optuna
import torch
from torch import nn

LIBRARY = "optuna"


def train(device):
    inputs, labels = torch.randn(32, 6).to(device), torch.randint(2, (32,)).to(device)

    def objective(trial):
        torch.manual_seed(0)
        width = trial.suggest_int("width", 4, 16)
        model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True))
        for step in range(4):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trial.report(loss.item(), step)
            if trial.should_prune():
                raise optuna.TrialPruned()
        return loss.item()

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner(n_startup_trials=2)
    )
    study.optimize(objective, n_trials=6)
    return study.best_params, study.best_value, [trial.state.name for trial in study.trials]
