"""A loop of one's own, with Fabric placing the model and the batches, in mixed precision."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "lightning"


def train(device):
    fabric = Fabric(accelerator=device, devices=1, precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    data = TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8))
    losses = []
    for inputs, labels in loader:
        assert inputs.device.type == device
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    state = {"model": model, "optimizer": optimizer}
    fabric.save("state.ckpt", state)
    fabric.load("state.ckpt", state)
    return losses, fabric.all_reduce(loss.detach()), model.state_dict()
