"""Train on Fashion-MNIST, save the weights: python fashion_mnist.py [data folder]"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
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
    dataset = FashionMNIST(folder, train=train, download=True, transform=ToTensor())
    return DataLoader(list(dataset), batch_size=BATCH_SIZE, shuffle=train)


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
    return running_loss / len(loader.dataset)


def count_correct(model, loader, device):
    model.eval()
    right = 0
    with torch.inference_mode():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            right += (model(images).argmax(dim=1) == labels).sum().item()
    return right


def main(folder):
    torch.manual_seed(0)
    found = torch.accelerator.current_accelerator(check_available=True)
    device = found or torch.device("cpu")
    print(f"training on {device}")
    train_loader = make_loader(folder, train=True)
    test_loader = make_loader(folder, train=False)
    model = Classifier().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(1, EPOCHS + 1):
        loss = train_epoch(model, train_loader, loss_fn, optimizer, device)
        print(f"Epoch [{epoch}/{EPOCHS}], loss {loss:.4f}", flush=True)
    right, total = count_correct(model, test_loader, device), len(test_loader.dataset)
    print(f"{right} of {total} test images right: {right / total:.2%}")
    torch.save(model.state_dict(), "fashion_mnist.pt")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")  # the folder, if one is named
