"""Accelerate places a model, its optimizer and its data, and accumulates gradients."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "accelerate"


def train(device):
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    assert accelerator.device.type == device
    set_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = DataLoader(
        TensorDataset(torch.randn(32, 8), torch.randint(3, (32,))), batch_size=8, shuffle=True
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    losses = []
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()))
    accelerator.save_state("state")
    accelerator.load_state("state")
    return losses, accelerator.get_state_dict(model)
