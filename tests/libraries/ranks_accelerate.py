"""Accelerate shares the data between two GPUs, or two processes on the CPU."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARY = "accelerate"

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(torch.randn(30, 8), torch.randint(3, (30,))), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for inputs, labels in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses += accelerator.gather_for_metrics(loss.detach().reshape(1)).tolist()
accelerator.wait_for_everyone()
found = {
    "backend": dist.get_backend(),
    "device": str(accelerator.device),
    "losses": losses,
    "weights": {name: value.cpu() for name, value in accelerator.get_state_dict(model).items()},
}
torch.save(found, Path(sys.argv[1], f"{accelerator.process_index}.pt"))
accelerator.end_training()
