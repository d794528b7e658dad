"""Exercise 14, in functions: devices with their numbers, the sum on one rank, the group in a with."""

import os
from contextlib import contextmanager

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, ROWS, BATCH = 5, 320, 32


@contextmanager
def process_group():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl", device_id=device)
    try:
        yield device
    finally:
        distributed.destroy_process_group()


def rows():
    draw = torch.Generator().manual_seed(14)
    inputs = torch.randn(ROWS, 8, generator=draw)
    return TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())


def train_epoch(model, optimizer, batches, device):
    """Return the sum of the losses of this process's rows."""
    total = torch.zeros((), device=device)
    for features, targets in batches:
        features, targets = features.to(device), targets.to(device)
        loss = nn.functional.cross_entropy(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(features)
    return total


def main():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    with process_group() as device:
        model = DDP(plain.to(device), device_ids=[device])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        sampler = DistributedSampler(rows(), seed=3)
        batches = DataLoader(sampler.dataset, BATCH // 2, sampler=sampler)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            total = train_epoch(model, optimizer, batches, device)
            distributed.reduce(total, dst=0)
            if distributed.get_rank() == 0:
                print(f"epoch {epoch + 1} of {EPOCHS}, loss {total.item() / ROWS:.5f}")
        if distributed.get_rank() == 0:
            torch.save(plain.state_dict(), "weights.pt")


if __name__ == "__main__":
    main()
