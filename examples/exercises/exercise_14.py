"""Exercise 14: Train one model on two GPUs.

Two functions are empty. Both are about one process of several: this file is started
twice, each time with a GPU of its own, by

    python -m gpulesson practice --nproc 2 exercise_14.py

And to check it:

    python -m gpulesson check exercise_14.py
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def my_batches(rows, batch_size, epoch, rank, world_size):
    """Return the batches of one process in one epoch, each as numbers of rows.

    rows: how many there are, numbered from 0. batch_size: how many rows a step takes,
    in all processes together. It divides rows, and world_size divides it.

    In every epoch each row comes to one process, once. The rows have a new order in
    every epoch, whatever was drawn before. A batch of one process has
    batch_size // world_size rows. Return a list of lists, or of tensors.
    """


def run(model, inputs, targets, epochs, file):
    """Do what one process does to train a model on all GPUs, started by torchrun.

    Join the process group, with NCCL. Train on the GPU of this process. The model,
    inputs [N, features] and class numbers [N] come from the CPU, and are the same in
    all processes. Each step takes 32 rows in all, by my_batches, and the gradient of
    their mean cross-entropy. Take an optimizer that you like.

    Return a list, in every process: for each epoch the mean loss of all N rows, as a
    number. Let one process save in file what model.load_state_dict can load.
    """


def main():
    """Do what each process does, and try what they have saved."""
    if "RANK" not in os.environ:
        print("Start it twice: python -m gpulesson practice --nproc 2 exercise_14.py")
        return
    rank, file = int(os.environ["RANK"]), Path("weights.pt")
    print(f"rank {rank}, batches of 4 of 8 rows: {my_batches(8, 4, 0, rank, 2)}")

    torch.manual_seed(0)
    inputs = torch.randn(320, 8)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    print(f"rank {rank}, loss of each epoch: {run(model, inputs, targets, 5, file)}")
    if rank == 0 and file.exists():
        plain = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        plain.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        loss = nn.functional.cross_entropy(plain(inputs), targets)
        print(f"loss of the weights that are saved: {loss.item():.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
