"""Small models of the usual families, each with a batch and a loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.embedding = nn.Embedding(100, 64)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(200, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.head = nn.Linear(width, 200, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.positions(positions)))


def images(batch: int, *shape: int, classes: int = 10):
    def make(device: str = "cpu") -> tuple[Tensor, Tensor]:
        return torch.randn(batch, *shape).to(device), torch.randint(classes, (batch,)).to(device)

    return make


def tokens(batch: int, length: int, vocabulary: int):
    def make(device: str = "cpu") -> tuple[Tensor, Tensor]:
        drawn = torch.randint(vocabulary, (batch, length + 1))
        return drawn[:, :-1].contiguous().to(device), drawn[:, 1:].contiguous().to(device)

    return make


def classes_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets)


def tokens_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def mlp():
    layers = nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    return nn.Sequential(*layers), images(64, 784), classes_loss


def cnn():
    body = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    more = (nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*body, *more, nn.Flatten(), nn.Linear(32, 10)), images(8, 3, 32, 32), classes_loss


def lstm():
    return Recurrent(), images(8, 20, 32), classes_loss


def transformer():
    def make(device: str = "cpu") -> tuple[Tensor, Tensor]:
        return torch.randint(100, (8, 24)).to(device), torch.randint(10, (8,)).to(device)

    return Encoder(), make, classes_loss


def gpt():
    return GPT(), tokens(4, 32, 200), tokens_loss


def resnet50():
    from torchvision.models import resnet50

    return resnet50(), images(2, 3, 224, 224, classes=1000), classes_loss


SMALL = {task.__name__: task for task in (mlp, cnn, lstm, transformer, gpt)}
