"""Train on Fashion-MNIST with a part of the model on each GPU (FSDP2).

    python train_fsdp.py --download                         once, where there is a network
    torchrun --standalone --nproc-per-node 4 train_fsdp.py  4 GPUs; if none, 4 processes
    python train_fsdp.py                                    one process

Start the same command again after a stop: it goes on from the last checkpoint, also
with another number of GPUs. Exit status 75: it was asked to stop, and has saved.
"""

import argparse
import atexit
import os
import shutil
import signal
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
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


def save(state, folder):
    """Write a checkpoint, each rank what it holds, and remove the one before."""
    unfinished = folder / "unfinished"
    if dist.get_rank() == 0:  # what a kill left there
        shutil.rmtree(unfinished, ignore_errors=True)
    any_rank(False)  # nobody writes before it is gone
    dcp.save(state, checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        before = list(folder.glob("step-*"))
        unfinished.rename(folder / f"step-{state['epoch']:05}-{state['steps']:07}")
        for each in before:
            shutil.rmtree(each)
    any_rank(False)  # nobody goes on, or exits, before it has its name


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


@torch.no_grad()
def accuracy(model, images, device):
    """All ranks have to call the model equally often: each call collects its parts."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sampler = DistributedSampler(images, shuffle=False)  # repeats some, to be even
    count = len(sampler) * world_size
    mine = torch.arange(rank, count, world_size) < len(images)  # the others are repeats
    correct = torch.zeros((), device=device)
    loader = DataLoader(images, batch_size=1000, sampler=sampler)
    for (inputs, labels), counts in zip(loader, mine.split(1000), strict=True):
        right = model(inputs.to(device)).argmax(dim=1) == labels.to(device)
        correct += (right & counts.to(device)).sum()  # a repeated image does not count
        if any_rank(stop_wanted()):  # the epoch is saved
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
    layers = [nn.Flatten()]  # an image is [1, 28, 28], now it is [784]
    for inputs in (784, 512, 512, 512):
        layers += [nn.Sequential(nn.Linear(inputs, 512), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(512, 10))  # ten logits
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in model[1:]:  # only one layer at a time is whole on a GPU
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    state = {"epoch": 0, "steps": 0, "loss": torch.zeros((), device=device)}

    args.folder.mkdir(parents=True, exist_ok=True)  # all nodes have to see this folder

    def everything():
        """What a checkpoint holds: of model and optimizer, this rank's part."""
        models, optimizers = get_state_dict(model, optimizer)
        parts = {"model": models, "optimizer": optimizers}
        return state | parts | {"scheduler": scheduler.state_dict()}

    if found := sorted(args.folder.glob("step-*")):
        loaded = everything()  # into these it loads, whatever the number of ranks was
        dcp.load(loaded, checkpoint_id=found[-1])
        optimizers, models = loaded.pop("optimizer"), loaded.pop("model")
        set_state_dict(
            model, optimizer, model_state_dict=models, optim_state_dict=optimizers
        )
        scheduler.load_state_dict(loaded.pop("scheduler"))
        state = loaded
        state["loss"] *= rank == 0  # the sum of all ranks' losses: one takes it over
        if rank == 0:
            where = f"epoch {state['epoch'] + 1}, step {state['steps'] + 1}"
            print(f"going on from {where}", flush=True)

    while state["epoch"] < args.epochs:
        sampler.set_epoch(state["epoch"])  # its order of images
        model.train()
        for step, (inputs, labels) in enumerate(loader):
            if step < state["steps"]:  # done before the stop
                continue
            inputs = inputs.to(device, non_blocking=cuda)
            labels = labels.to(device, non_blocking=cuda)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # each rank gets its part of the gradients, averaged
            optimizer.step()
            state["steps"] += 1
            state["loss"] += loss.detach() * len(labels)
            if state["steps"] % ASK_EVERY == 0 and any_rank(stop_wanted()):
                dist.all_reduce(state["loss"])
                save(everything(), args.folder)
                stop()
        scheduler.step()
        dist.all_reduce(state["loss"])  # each rank knows only the loss of its images
        loss = state["loss"].item() / (len(sampler) * world_size)
        state["epoch"] += 1
        state["steps"] = 0
        state["loss"].zero_()
        save(everything(), args.folder)  # first: a stop while evaluating loses nothing
        model.eval()
        right = accuracy(model, test, device)
        if rank == 0:
            print(f"Epoch [{state['epoch']}/{args.epochs}]", end=", ")
            print(f"loss {loss:.4f}, test accuracy {right:.2%}", flush=True)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)  # whole, on rank 0
    if rank == 0:
        torch.save(weights, args.folder / "model.pt.part")
        Path(args.folder / "model.pt.part").replace(args.folder / "model.pt")
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
