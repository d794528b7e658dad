"""Train with several GPUs, and go on from the last checkpoint after a process died:
torchrun --standalone --nproc-per-node 2 --max-restarts 1 restart_ddp.py"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH_SIZE = 4, 64


def make_data():
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(640, 8, generator=draw, dtype=torch.float64)
    return TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).double()


def save(epochs, model, optimizer):
    state = {"epochs": epochs, "model": model.state_dict()}
    state["optimizer"] = optimizer.state_dict()  # and the scheduler's, if you have one
    torch.save(state, "checkpoint.part")
    Path("checkpoint.part").replace("checkpoint.pt")  # a kill leaves the old one


def load(model, optimizer):
    if not Path("checkpoint.pt").exists():
        return 0
    state = torch.load("checkpoint.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epochs"]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])  # 0, then 1
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset, loss_fn = make_data(), nn.CrossEntropyLoss()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, BATCH_SIZE // world_size, sampler=sampler)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    done = load(model, optimizer)  # all ranks read the same file
    print(f"rank {rank}, attempt {attempt}: {done} epochs are done", flush=True)
    parallel = DistributedDataParallel(model, device_ids=[local_rank])
    for epoch in range(done, EPOCHS):
        sampler.set_epoch(epoch)  # the order follows from the number of the epoch,
        torch.manual_seed(epoch * world_size + rank)  # and so do all random draws
        for step, (inputs, labels) in enumerate(loader):
            if (attempt, rank, epoch, step) == (0, 1, 2, 5):
                os.kill(os.getpid(), 9)  # to try it: rank 1 dies in its third epoch
            loss = loss_fn(parallel(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            save(epoch + 1, model, optimizer)
    print(f"rank {rank}, attempt {attempt}: finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
