"""Exercise 9: by indexing, and a list in the end."""

import torch
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]


def feed(pictures: Pictures, device: torch.device):
    batches: list = []
    for start in range(0, len(pictures), 64):
        inputs, targets = pictures[start : start + 64]
        inputs = inputs.to(device)
        batches.append((inputs.to(torch.float32).div_(255), targets.to(device)))
    return batches
