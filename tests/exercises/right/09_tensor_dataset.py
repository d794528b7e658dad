"""Exercise 9: PyTorch's own dataset."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def Pictures(pixels, labels):
    return TensorDataset(pixels, labels)


def feed(pictures, device):
    order = torch.arange(len(pictures)).split(64)
    loader = DataLoader(pictures, batch_size=None, sampler=[rows.tolist() for rows in order])
    return ((batch[0].to(device) * (1 / 255), batch[1].to(device)) for batch in loader)
