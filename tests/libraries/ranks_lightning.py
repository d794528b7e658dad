"""Lightning's Trainer shares each batch between two GPUs, or two processes on the CPU."""

import sys
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "lightning"


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch, index):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        self.log("train", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


L.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(30, 8), torch.randint(3, (30,)))
trainer = L.Trainer(
    devices=2,
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Classifier()
trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True))
found = {
    "backend": dist.get_backend(),
    "device": str(trainer.strategy.root_device),
    "losses": [trainer.callback_metrics["train_epoch"].item()],
    "weights": {name: value.cpu() for name, value in model.state_dict().items()},
}
torch.save(found, Path(sys.argv[1], f"{trainer.global_rank}.pt"))
