"""Every rank prints."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, ROWS, BATCH = 5, 320, 32

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()

draw = torch.Generator().manual_seed(14)
inputs = torch.randn(ROWS, 8, generator=draw)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = TensorDataset(inputs, labels)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
model = DistributedDataParallel(model.to("cuda"), device_ids=[local_rank])
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
sampler = DistributedSampler(data)
batches = DataLoader(data, batch_size=BATCH // world_size, sampler=sampler)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    total = torch.zeros((), device="cuda")
    for features, targets in batches:
        features, targets = features.to("cuda"), targets.to("cuda")
        loss = loss_fn(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(features)
    dist.all_reduce(total)
    print(f"epoch {epoch + 1}: loss {total.item() / ROWS:.4f}")  # <- diagnosis: every-rank-prints

if rank == 0:
    torch.save(model.module.state_dict(), "weights.pt")
dist.destroy_process_group()
