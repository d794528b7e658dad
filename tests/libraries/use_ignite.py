"""An engine trains a network, another measures it after every epoch."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, ConfusionMatrix, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "pytorch-ignite"


def train(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(torch.randn(32, 8), torch.randint(3, (32,))), batch_size=8)
    trainer = create_supervised_trainer(model, optimizer, loss, device=device)
    metrics = {
        "accuracy": Accuracy(device=device),
        "loss": Loss(loss, device=device),
        "confusion": ConfusionMatrix(3, device=device),
    }
    evaluator = create_supervised_evaluator(model, metrics, device=device)
    measured = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def measure(engine):
        evaluator.run(loader)
        measured.append((engine.state.output, dict(evaluator.state.metrics)))

    trainer.run(loader, max_epochs=3)
    return measured
