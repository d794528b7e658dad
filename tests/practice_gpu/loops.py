"""Training code as learners write it: it takes CUDA where there is some, and knows of no practice GPU."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def sliced_batches() -> list[float]:
    """S0.5: batches of 10 by slicing, both halves moved inside the loop, 100 epochs, binary cross-entropy."""
    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X = torch.rand(40, 8)
    y = (X.sum(dim=1, keepdim=True) > 4).float()
    model = nn.Sequential(
        nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid()
    )
    model.to(device)
    loss_fn = nn.BCELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    n_epochs = 100
    batch_size = 10
    losses = []
    for _ in range(n_epochs):
        for i in range(0, len(X), batch_size):
            Xbatch = X[i : i + batch_size].to(device)
            y_pred = model(Xbatch)
            ybatch = y[i : i + batch_size].to(device)
            loss = loss_fn(y_pred, ybatch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


class Images(Dataset):
    """Random images shaped like Fashion-MNIST."""

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 10, (number,), generator=generator)
        self.images = torch.rand(number, 1, 28, 28, generator=generator) + self.labels.view(-1, 1, 1, 1) / 10

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])


class NeuralNetwork(nn.Module):
    """784-128-64-10."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.network = nn.Sequential(
            nn.Linear(28 * 28, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(self.flatten(x))


def fashion() -> list[float]:
    """S1.13: 784-128-64-10, Adam 1e-3, batch 64, 5 epochs, running loss, then test accuracy."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Images(640), batch_size=64, shuffle=True)
    test_loader = DataLoader(Images(128), batch_size=64, shuffle=False)
    model = NeuralNetwork().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    results = []
    for _ in range(5):
        model.train()
        running_loss = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        results.append(running_loss / len(train_loader))
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for images, labels in test_loader:
            images, labels = images.to(device), labels.to(device)
            predicted = model(images).argmax(dim=1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    results.append(100 * correct / total)
    return results


def iris() -> list[float]:
    """S3.8: the 4-8-9-3 network, 100 full-batch epochs, Adam 0.01, seed 32, `.cuda()` everywhere."""
    torch.manual_seed(32)
    rows = torch.rand(120, 4, generator=torch.Generator().manual_seed(33))
    kinds = (rows.sum(dim=1) * 1.5).long().clamp(0, 2)
    gpu = torch.cuda.is_available()
    X_train = torch.FloatTensor(rows.numpy()).cuda() if gpu else torch.FloatTensor(rows.numpy())
    y_train = torch.LongTensor(kinds.numpy()).cuda() if gpu else torch.LongTensor(kinds.numpy())

    class Model(nn.Module):
        def __init__(self, in_features: int = 4, h1: int = 8, h2: int = 9, out_features: int = 3) -> None:
            super().__init__()
            self.fc1 = nn.Linear(in_features, h1)
            self.fc2 = nn.Linear(h1, h2)
            self.out = nn.Linear(h2, out_features)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))

    model = Model()
    gpumodel = model.cuda() if gpu else model
    assert next(gpumodel.parameters()).is_cuda == gpu
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(gpumodel.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        y_pred = gpumodel.forward(X_train)
        loss = criterion(y_pred, y_train)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def convolutions(device: str) -> dict[str, Any]:
    """A CNN with BatchNorm, Dropout, scheduler, autocast, GradScaler and gradient clipping."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(8 * 13 * 13, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    scaler = torch.amp.GradScaler("cuda", enabled=device != "cpu")
    losses, dtypes = [], set()
    model.train()
    for _ in range(4):
        for images, labels in DataLoader(Images(128), batch_size=32):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
            dtypes.add(logits.dtype)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        scheduler.step()
    return {
        "losses": losses,
        "dtypes": dtypes,
        "norm": norm,
        "scale": scaler.get_scale(),
        "lr": scheduler.get_last_lr(),
        "model": model,
        "optimizer": optimizer,
    }


def recurrent(device: str) -> list[float]:
    """An LSTM with an embedding, packed sequences, and a linear head."""
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 6).to(device)
    lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True).to(device)
    head = nn.Linear(16, 3).to(device)
    parameters = [*embedding.parameters(), *lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    words = torch.randint(0, 20, (12, 7)).to(device)
    lengths = torch.tensor([7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1])
    targets = torch.randint(0, 3, (12,)).to(device)
    losses = []
    for _ in range(5):
        packed = nn.utils.rnn.pack_padded_sequence(embedding(words), lengths, batch_first=True)
        out, (hidden, _) = lstm(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        loss = F.cross_entropy(head(padded.mean(dim=1) + torch.cat([hidden[-1], hidden[-2]], dim=1)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def transformer(device: str) -> list[float]:
    """A TransformerEncoder with a causal mask, trained and then evaluated (where it takes its fast path)."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=16, nhead=4, dim_feedforward=32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.randn(4, 9, 16).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(9, device=torch.device(device))
    losses = []
    for _ in range(3):
        loss = (model(inputs, mask=mask, is_causal=True) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(inputs).sum().item())
        padding = torch.zeros(4, 9, dtype=torch.bool, device=device)
        padding[0, 5:] = True
        losses.append(model(inputs, src_key_padding_mask=padding)[:, 0].sum().item())
    return losses


def half_way(device: str, map_location: Any, file: Any) -> tuple[list[float], list[float]]:
    """Train four steps; train two, save, build anew, load, train two. Return both runs' last two losses."""
    inputs = torch.rand(16, 5, generator=torch.Generator().manual_seed(1)).to(device)
    targets = inputs.sum(dim=1, keepdim=True)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Linear(5, 1).to(device)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> list[float]:
        losses = []
        for _ in range(number):
            loss = F.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    straight = steps(*build(), 4)[2:]
    model, optimizer = build()
    steps(model, optimizer, 2)
    torch.save({"model": model.state_dict(), "optimizer": copy.deepcopy(optimizer.state_dict())}, file)
    if hasattr(file, "seek"):
        file.seek(0)
    model, optimizer = build()
    checkpoint = torch.load(file, map_location=map_location)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return straight, steps(model, optimizer, 2)


def loaded(device: str, **options: Any) -> torch.Tensor:
    """Sum what a DataLoader yields, on the device."""
    total = torch.zeros((), device=device)
    for images, labels in DataLoader(Images(50), batch_size=16, **options):
        total += images.to(device, non_blocking=True).sum() + labels.to(device, non_blocking=True).sum()
    return total


def on_tensors(device: str) -> TensorDataset:
    """A TensorDataset on a device."""
    return TensorDataset(torch.arange(6.0, device=device), torch.arange(6, device=device))
