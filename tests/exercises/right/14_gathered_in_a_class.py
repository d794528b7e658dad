"""Exercise 14 in a class: batches from a batch sampler, losses gathered, weights saved after every epoch."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import CrossEntropyLoss, Linear, ReLU, Sequential
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, distributed


class Trainer:
    """Trains on this process's GPU."""

    def __init__(self, rows, batch, rate):
        torch.manual_seed(0)
        self.rows, self.device = rows, torch.cuda.current_device()
        model = Sequential(Linear(8, 32), ReLU(), Linear(32, 2)).cuda()
        self.model = DistributedDataParallel(model, device_ids=[self.device])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.sampler = distributed.DistributedSampler(rows, shuffle=True, drop_last=True)
        self.batches = DataLoader(rows, batch // dist.get_world_size(), sampler=self.sampler)

    def epoch(self, number):
        """Return the mean loss over all rows."""
        self.sampler.set_epoch(number)
        losses = [self.step(*[part.cuda() for part in batch]) for batch in self.batches]
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, torch.cat(losses).tolist())
        return sum(map(sum, gathered)) / len(self.rows)

    def step(self, features, targets):
        self.optimizer.zero_grad()
        each = CrossEntropyLoss(reduction="none")(self.model(features), targets)
        each.mean().backward()
        self.optimizer.step()
        return each.detach()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(14))
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    trainer = Trainer(TensorDataset(inputs, labels), 32, 0.5)
    main = dist.get_rank() == 0
    for number in range(5):
        loss = trainer.epoch(number)
        if main:
            print(f"{number + 1:>3}  {loss:.6f}", flush=True)
            torch.save(trainer.model.module.state_dict(), Path("weights.pt"))
    dist.destroy_process_group()
