"""Train on Fashion-MNIST with several GPUs, save the weights:
torchrun --standalone --nproc-per-node 2 fashion_mnist_ddp.py [data folder]"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

EPOCHS, BATCH_SIZE, LEARNING_RATE = 5, 64, 1e-3


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden1 = nn.Linear(784, 128)
        self.hidden2 = nn.Linear(128, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(start_dim=1)  # [N, 1, 28, 28] to [N, 784]
        x = torch.relu(self.hidden1(x))  # [N, 128]
        x = torch.relu(self.hidden2(x))  # [N, 64]
        return self.out(x)  # logits, [N, 10]


def make_loader(folder, train):
    dataset = FashionMNIST(folder, train=train, transform=ToTensor())
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if train:
        mine = DistributedSampler(dataset)  # shuffles, and deals out equal parts
    else:
        mine = range(rank, len(dataset), world_size)  # each image once, in order
    assert BATCH_SIZE % world_size == 0, "choose a BATCH_SIZE that the GPUs can share"
    share = BATCH_SIZE // world_size  # all ranks together take 64
    return DataLoader(list(dataset), batch_size=share, sampler=mine)


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train()
    running_loss = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(labels)
    running_loss = torch.tensor(running_loss, device=device)
    dist.all_reduce(running_loss)  # now it is the sum over all ranks
    seen = len(loader.sampler) * dist.get_world_size()  # all see equally many
    return running_loss.item() / seen


def count_correct(model, loader, device):
    model.eval()
    right = 0
    with torch.inference_mode():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            right += (model(images).argmax(dim=1) == labels).sum().item()
    right = torch.tensor(right, device=device)
    dist.all_reduce(right)
    return right.item()


def main(folder):
    torch.manual_seed(0)
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)  # each process has a GPU of its own
    dist.init_process_group("nccl", device_id=device)  # waits for all processes
    print(f"training on {device}")
    machine = int(os.environ["GROUP_RANK"])  # in turn: machines may share a folder
    for turn in range(int(os.environ["GROUP_WORLD_SIZE"])):
        if machine == turn and local_rank == 0:
            FashionMNIST(folder, download=True)  # once on each; the others wait for it
        dist.barrier()
    train_loader = make_loader(folder, train=True)
    test_loader = make_loader(folder, train=False)
    model = Classifier().to(device)
    parallel = DistributedDataParallel(model, device_ids=[local_rank])
    torch.manual_seed(dist.get_rank())  # from here on each rank draws its own numbers
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(1, EPOCHS + 1):
        train_loader.sampler.set_epoch(epoch)  # another order in each epoch
        loss = train_epoch(parallel, train_loader, loss_fn, optimizer, device)
        if dist.get_rank() == 0:
            print(f"Epoch [{epoch}/{EPOCHS}], loss {loss:.4f}", flush=True)
    right, total = count_correct(model, test_loader, device), len(test_loader.dataset)
    if dist.get_rank() == 0:
        print(f"{right} of {total} test images right: {right / total:.2%}")
        torch.save(model.state_dict(), "fashion_mnist.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")  # the folder, if one is named
