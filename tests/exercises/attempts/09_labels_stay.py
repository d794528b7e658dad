"""Exercise 9."""

from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler


class Pictures(Dataset):
    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]


def feed(pictures, device):
    batches = BatchSampler(SequentialSampler(pictures), 64, drop_last=False)
    for inputs, targets in DataLoader(pictures, sampler=batches, batch_size=None):
        yield inputs.to(device).float() / 255, targets  # <- diagnosis: still-on-host
