"""Exercise 9."""

from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]

    def __getitems__(self, indices):
        return [self[index] for index in indices]  # <- diagnosis: called-for-each-sample


def feed(pictures, device):
    for inputs, targets in DataLoader(pictures, batch_size=64):
        yield inputs.to(device).float() / 255, targets.to(device)
