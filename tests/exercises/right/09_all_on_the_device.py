"""Exercise 9: a callable object."""

from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]


class Feed:
    """Copies all the bytes once, and cuts batches there."""

    def __call__(self, pictures, device):
        pixels, labels = pictures[:]
        parts = pixels.to(device).split(64), labels.to(device).split(64)
        return ((images.float() / 255, targets) for images, targets in zip(*parts, strict=True))


feed = Feed()
