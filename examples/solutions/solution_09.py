"""Exercise 9, solved: one call a batch, and bytes until they are on the device."""

from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


def floats(pixels, device):
    return pixels.to(device).float() / 255


def feed(pictures, batch_size, device):
    order = SequentialSampler(pictures)
    sampler = BatchSampler(order, batch_size=batch_size, drop_last=False)
    for pixels, labels in DataLoader(pictures, sampler=sampler, batch_size=None):
        yield floats(pixels, device), labels.to(device)
