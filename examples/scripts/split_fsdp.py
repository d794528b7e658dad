"""Split a model among all GPUs, and print what each of them holds after a step:
torchrun --nproc-per-node 2 split_fsdp.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))


def whole(device):
    return make_model().to(device)


def split():
    model = make_model()
    precision = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=precision)  # moves it, and keeps a part
    fully_shard(model, mp_policy=precision)
    return model


def held_after_a_step(model, device):
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 1024, device=device)).sum().backward()
    optimizer.step()
    return torch.cuda.memory_allocated() / 2**20


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    copied = held_after_a_step(whole(device), device)
    shared = held_after_a_step(split(), device)
    rank = dist.get_rank()
    print(f"rank {rank}: whole {copied:.1f} MiB, split {shared:.1f} MiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
