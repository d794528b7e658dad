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
        x = x.view(x.size(0), -1)  # [N, 1, 28, 28] to [N, 784]
        x = torch.relu(self.hidden1(x))  # [N, 128]
        x = torch.relu(self.hidden2(x))  # [N, 64]
        return self.out(x)  # logits, [N, 10]


def make_loader(folder, train):
    dataset = FashionMNIST(folder, train=train, download=True, transform=ToTensor())
    settings = {"num_workers": 2, "persistent_workers": True}
    settings["pin_memory"] = torch.cuda.is_available()
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=train, **settings)


def train_epoch(model, loader, loss_fn, optimizer, device):
    model.train()
    no_wait = device.type == "cuda"  # on Apple's GPUs such copies can be wrong
    running_loss, seen = torch.zeros((), device=device), 0
    for images, labels in loader:
        images = images.to(device, non_blocking=no_wait)
        labels = labels.to(device, non_blocking=no_wait)
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.detach() * len(labels)  # weighted by samples
        seen += len(labels)
    return running_loss.item() / seen


@torch.inference_mode()
def count_correct(model, loader, device):
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(dim=1)
        correct += (predicted == labels.to(device)).sum()
    return correct.item()


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
    correct, total = count_correct(model, test_loader, device), len(test_loader.dataset)
    print(f"{correct} of {total} test images right: {correct / total:.2%}")
    torch.save(model.state_dict(), "fashion_mnist.pt")


if __name__ == "__main__":  # some systems import this file again in each worker
    main(sys.argv[1] if len(sys.argv) > 1 else "data")  # the folder, if one is named
