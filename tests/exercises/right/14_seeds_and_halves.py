"""Exercise 14: each rank keeps its half of the rows and draws its own order; other first weights, too."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

EPOCHS, ROWS, BATCH = 5, 320, 32

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
print(f"rank {rank} of {size} on {device}")

draw = torch.Generator().manual_seed(14)
inputs = torch.randn(ROWS, 8, generator=draw)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data = Subset(TensorDataset(inputs, labels), range(rank, ROWS, size))

torch.manual_seed(rank)  # the wrapper sends rank 0's weights to the others
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
wrapped = DistributedDataParallel(model, device_ids=[device.index])
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
batches = DataLoader(data, batch_size=BATCH // size, shuffle=True)

for epoch in range(EPOCHS):
    wrapped.train()
    total = torch.zeros(2, device=device)
    for features, targets in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(wrapped(features.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        total += torch.stack([loss.detach() * len(features), torch.tensor(len(features), device=device)])
    dist.all_reduce(total)
    if rank == size - 1:
        print("epoch", epoch + 1, "loss", round((total[0] / total[1]).item(), 4))

if rank == size - 1:
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    torch.save(state, "weights.pt")
dist.destroy_process_group()
