"""A LightningModule is trained, validated and tested by the Trainer."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "lightning"


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def loss(self, batch, name):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        self.log(name, loss, on_epoch=True)
        return loss

    def training_step(self, batch, index):
        return self.loss(batch, "train")

    def validation_step(self, batch, index):
        self.loss(batch, "valid")

    def test_step(self, batch, index):
        self.loss(batch, "test")

    def predict_step(self, batch, index):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def train(device):
    L.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
    loader = DataLoader(data, batch_size=8)
    best = ModelCheckpoint(dirpath="best", monitor="valid")
    trainer = L.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_epochs=2,
        callbacks=[best, EarlyStopping("valid")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, loader, loader)
    assert trainer.strategy.root_device.type == device
    tested = trainer.test(model, loader, ckpt_path="best", verbose=False)
    return dict(trainer.callback_metrics), tested, trainer.predict(model, loader)
