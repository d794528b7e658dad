"""Exercise 9, an attempt: the loader is made in a function of its own, and shuffles."""

import sys

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import gpulesson

BATCH = 64


class Pictures(Dataset):
    """Images as bytes, and their labels; counts how often it is asked."""

    def __init__(self, pixels, labels):
        self.pixels, self.labels, self.calls = pixels, labels, 0

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        self.calls += 1
        return self.pixels[index], self.labels[index]


def make_loader(pictures):
    order = RandomSampler(pictures)  # <- diagnosis: order-changed
    sampler = BatchSampler(order, batch_size=BATCH, drop_last=False)
    return DataLoader(pictures, sampler=sampler, batch_size=None)


def scale(batch):
    return batch.float().div_(255)


def feed(pictures, device):
    for pixels, targets in make_loader(pictures):
        yield scale(pixels.to(device)), targets.to(device)


torch.manual_seed(0)
pixels = torch.randint(256, (2000, 784), dtype=torch.uint8)
labels = torch.randint(10, (2000,))
pictures = Pictures(pixels, labels)

with gpulesson.practice_gpu(force=True) as gpu:  # it counts copies, on any machine
    arrived = list(feed(pictures, torch.device("cuda")))  # here a model would train
    nbytes = sum(event.nbytes for event in gpu.events)
    inputs, targets = (torch.cat(tensors).cpu() for tensors in zip(*arrived, strict=True))

print(f"{pictures.calls} calls, {nbytes / 1e6:.2f} MB copied for {len(arrived)} batches")
if inputs.dtype != torch.float32:
    verdict = "the model wants floats"
elif len(inputs) != len(pixels) or not torch.allclose(inputs, pixels / 255):
    verdict = "other images, or another order"
elif not torch.equal(targets, labels):
    verdict = "other labels, or another order"
elif pictures.calls > len(arrived) or nbytes > pixels.nbytes + labels.nbytes:
    verdict = "there is a shorter way"
else:
    verdict = "well fed"
print(verdict)
sys.exit(verdict != "well fed")
