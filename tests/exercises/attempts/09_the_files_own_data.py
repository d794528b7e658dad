"""Exercise 9."""

import torch
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]


pixels = torch.zeros(2000, 784, dtype=torch.uint8)
labels = torch.zeros(2000, dtype=torch.int64)


def feed(pictures, device):
    for start in range(0, 2000, 64):  # <- diagnosis: other-data
        rows = slice(start, start + 64)
        yield pixels[rows].to(device).float() / 255, labels[rows].to(device)
