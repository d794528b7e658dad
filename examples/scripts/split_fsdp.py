"""Split a model among all GPUs, train it, and save it in parts (PyTorch 2.6 or newer):
torchrun --standalone --nproc-per-node 2 split_fsdp.py"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))


def split(model):
    precision = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=precision)  # moves it, and keeps a part
    fully_shard(model, mp_policy=precision)


def train(model, device):
    torch.manual_seed(dist.get_rank())  # each process draws rows of its own
    optimizer = torch.optim.Adam(model.parameters())  # after the split: of the parts
    for _ in range(3):
        loss = model(torch.randn(8, 1024, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


def save(model, optimizer):
    models, optimizers = get_state_dict(model, optimizer)
    dcp.save({"model": models, "optimizer": optimizers}, checkpoint_id="parts")


def print_memory(name, before):
    held, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    held, most = (f"{(size - before) / 2**20:.1f}" for size in (held, most))
    print(f"{name}: {held} MiB now, {most} at most", flush=True)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank = dist.get_rank()
    small = nn.Linear(1024, 1024, device=device)  # its library takes memory, too
    small(torch.ones(8, 1024, device=device)).sum().backward()
    del small
    before = torch.cuda.memory_allocated()  # of the library, not of a model
    torch.cuda.reset_peak_memory_stats()

    model = make_model().to(device)  # to compare: all of it in each process
    optimizer = train(model, device)
    print_memory(f"rank {rank}, whole", before)
    del model, optimizer
    torch.cuda.reset_peak_memory_stats()

    model = make_model()  # on the CPU
    split(model)
    optimizer = train(model, device)
    print_memory(f"rank {rank}, split", before)
    save(model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
