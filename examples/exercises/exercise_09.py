"""Exercise 9: Feed a GPU with fewer calls and bytes.

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_09.py
"""

import torch
from torch.utils.data import DataLoader, Dataset

import gpulesson


def floats(pixels, device):
    """Return the pixels on the device, as float32 from 0 to 1: 255 becomes 1.

    pixels: bytes (uint8) [N, pixels], on the CPU. Only the bytes are copied to the
    device: one for each pixel.
    """


def feed(pictures, batch_size, device):
    """Yield the batches of one epoch, on the device, in the order of the dataset.

    Each is a pair: images, made by floats, and their labels. The last batch may be
    shorter.

    pictures: a dataset such as Pictures below. It is called once for each batch, in
    this process, and never for all pictures at once: they might not fit into memory.
    """


class Pictures(Dataset):
    """The check has another one. All that feed may use are len(…) and […]."""

    def __init__(self, number):
        self._images = torch.randint(256, (number, 784), dtype=torch.uint8)
        self._labels = torch.randint(10, (number,))
        self.calls = 0

    def __len__(self):
        return len(self._images)

    def __getitem__(self, index):
        """Return images and labels: of a number, a list of numbers, or a slice."""
        self.calls += 1
        return self._images[index], self._labels[index]


def one_by_one(pictures, batch_size, device):
    """Feed as a plain DataLoader does: one call for each picture."""
    for images, labels in DataLoader(pictures, batch_size=batch_size):
        yield (images.float() / 255).to(device), labels.to(device)


def main():
    """Count calls and bytes of an epoch, in batches of 64, on a practice GPU."""
    for way in (one_by_one, feed):
        pictures = Pictures(2000)
        with gpulesson.practice_gpu(force=True) as gpu:
            batches = list(way(pictures, 64, torch.device("cuda")) or ())
            megabytes = sum(event.nbytes for event in gpu.events) / 1e6
        print(f"{way.__name__:<10} {len(batches):>3} batches, ", end="")
        print(f"{pictures.calls:>5,} calls, {megabytes:.2f} MB copied")


if __name__ == "__main__":
    main()
