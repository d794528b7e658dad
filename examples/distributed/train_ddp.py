"""Train on Fashion-MNIST with a copy of the model on each GPU (DDP).

    python train_ddp.py --download                         once, where there is a network
    torchrun --standalone --nproc-per-node 4 train_ddp.py  4 GPUs; if none, 4 processes
    python train_ddp.py                                    one process

Start the same command again after a stop: it goes on from the last checkpoint, also
with another number of GPUs. Exit status 75: it was asked to stop, and has saved.
"""

import argparse
import atexit
import os
import signal
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

STOPPED = 75  # Unix's number for "a temporary failure, try again later"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
asked = []  # the signals that came
ASK_EVERY = 5  # steps: all ranks ask each other whether one has to stop
parent = os.getppid()  # torchrun, if that started this process


def stop_wanted():
    """Tell whether a signal came, or torchrun was killed: then nobody ends this rank."""
    return bool(asked) or ("LOCAL_RANK" in os.environ and os.getppid() != parent)


def any_rank(flag):
    """Tell every rank whether the flag is true on one of them; this waits for all."""
    flags = torch.tensor(int(flag))  # on the CPU, so that no GPU has to be waited for
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)


def stop():
    dist.destroy_process_group()
    sys.exit(STOPPED)


def save(state, path):
    if dist.get_rank() == 0:  # all ranks hold the same: one file is enough
        torch.save(state, f"{path}.part")
        Path(f"{path}.part").replace(path)  # a kill never leaves half a file
    any_rank(False)  # nobody goes on, or exits, before the file is there


def ignore_signals(worker):
    """Let processes that load images live on: a batch system signals them, too."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def end_loading():
    """End the processes that load images: they would ignore Python's own request."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # their end is no error now
    for process in active_children():
        process.kill()


@torch.inference_mode()
def accuracy(model, images, device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = Subset(images, range(rank, len(images), world_size))  # no image counts twice
    correct = torch.zeros((), device=device)
    for inputs, labels in DataLoader(mine, batch_size=1000):
        if stop_wanted():  # the epoch is saved
            break
        correct += (model(inputs.to(device)).argmax(dim=1) == labels.to(device)).sum()
    if any_rank(stop_wanted()):
        stop()
    dist.all_reduce(correct)  # the sum over all ranks
    return correct.item() / len(images)


def main(args):
    for number in SIGNALS:  # only note it: the loop looks later
        signal.signal(number, lambda number, frame: asked.append(number))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))  # torchrun sets it
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)  # without it, every rank takes the first GPU
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"  # NCCL connects GPUs, Gloo CPUs
    if "RANK" in os.environ:  # torchrun has set it
        store, rank, world_size = next(dist.rendezvous("env://"))
    else:
        store, rank, world_size = dist.HashStore(), 0, 1
    # after a restart by torchrun the store still has the addresses of ranks that died
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    # Gloo has threads that must be done when Python ends (pytorch/pytorch#179291)
    atexit.register(time.sleep, 0.2)
    if args.batch_size % world_size:
        sys.exit(f"--batch-size {args.batch_size} is no multiple of {world_size} ranks")

    train = FashionMNIST(args.data, train=True, transform=ToTensor())
    test = FashionMNIST(args.data, train=False, transform=ToTensor())
    train = Subset(train, range(args.samples or len(train)))
    sampler = DistributedSampler(train)  # each rank gets other images, all equally many
    share = args.batch_size // world_size  # of each batch: the ranks share the work
    loading = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loading |= {"worker_init_fn": ignore_signals, "pin_memory": cuda}
    loader = DataLoader(train, batch_size=share, sampler=sampler, **loading)
    torch.manual_seed(0)
    model = nn.Sequential(  # an image is [1, 28, 28]
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),  # [16, 14, 14]
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),  # [32, 7, 7]
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),  # ten logits
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    state = {"epoch": 0, "steps": 0, "loss": torch.zeros((), device=device)}

    args.folder.mkdir(parents=True, exist_ok=True)  # all nodes have to see this folder
    file = args.folder / "checkpoint.pt"
    if file.exists():
        state = torch.load(file, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state.pop(name))  # copies to the model's device
        mine = rank == 0  # the sum of all ranks' losses: one rank takes it over
        state["loss"] = state["loss"].to(device) * mine
        if rank == 0:
            where = f"epoch {state['epoch'] + 1}, step {state['steps'] + 1}"
            print(f"going on from {where}", flush=True)

    def checkpoint():
        save(state | {name: part.state_dict() for name, part in parts.items()}, file)

    ddp = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    while state["epoch"] < args.epochs:
        sampler.set_epoch(state["epoch"])  # its order of images
        model.train()
        for step, (inputs, labels) in enumerate(loader):
            if step < state["steps"]:  # done before the stop
                continue
            inputs = inputs.to(device, non_blocking=cuda)
            labels = labels.to(device, non_blocking=cuda)
            loss = nn.functional.cross_entropy(ddp(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # here DDP averages the gradients of all ranks
            optimizer.step()
            state["steps"] += 1
            state["loss"] += loss.detach() * len(labels)
            if state["steps"] % ASK_EVERY == 0 and any_rank(stop_wanted()):
                dist.all_reduce(state["loss"])
                checkpoint()
                stop()
        scheduler.step()
        dist.all_reduce(state["loss"])  # each rank knows only the loss of its images
        loss = state["loss"].item() / (len(sampler) * world_size)
        state["epoch"] += 1
        state["steps"] = 0
        state["loss"].zero_()
        checkpoint()  # first: a stop while evaluating loses nothing
        model.eval()
        right = accuracy(model, test, device)
        if rank == 0:
            print(f"Epoch [{state['epoch']}/{args.epochs}]", end=", ")
            print(f"loss {loss:.4f}, test accuracy {right:.2%}", flush=True)
    save(model.state_dict(), args.folder / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":  # the processes that load images may import this file again
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data", help="folder with Fashion-MNIST")
    parser.add_argument("--download", action="store_true", help="fetch it, and end")
    parser.add_argument("--folder", type=Path, default=Path("run"), help="checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=2, help="that load images")
    parser.add_argument("--samples", type=int, help="train with the first ones only")
    args = parser.parse_args()
    if args.download:
        FashionMNIST(args.data, download=True)
    else:
        main(args)
