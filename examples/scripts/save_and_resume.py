"""A run that saves itself, and goes on when it is started again.

    python save_and_resume.py [folder]

Exit status 75: a signal asked it to stop, and it has saved.
"""

import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10


def save(path, parts, epoch, step=0):
    checkpoint = {name: part.state_dict() for name, part in parts.items()}
    checkpoint |= {"epoch": epoch, "step": step, "rng": torch.get_rng_state()}
    checkpoint["gpu_rng"] = torch.cuda.get_rng_state_all()  # a list, maybe empty
    part = Path(f"{path}.part")
    torch.save(checkpoint, part)
    part.replace(path)  # so a kill never leaves half a file


def resume(path, parts):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(checkpoint[name])
    torch.set_rng_state(checkpoint["rng"])
    here = torch.cuda.device_count()  # there may be fewer GPUs than before
    torch.cuda.set_rng_state_all(checkpoint["gpu_rng"][:here])
    return checkpoint["epoch"], checkpoint["step"]


def main(folder):
    asked = []  # the signals that came; the loop looks after each step
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checkpoint.pt"
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = torch.randn(3200, 8)
    data = TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
    order = torch.Generator()  # the order of the rows follows from the epoch
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=order)
    layers = nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 1)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    first, done = resume(path, parts) if path.exists() else (0, 0)
    for epoch in range(first, EPOCHS):
        order.manual_seed(epoch)
        for step, (inputs, targets) in enumerate(loader):
            if (epoch, step) < (first, done):  # before the stop
                continue
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if asked and step + 1 < len(loader):  # after the last one: below
                save(path, parts, epoch, step + 1)
                sys.exit(75)
        scheduler.step()
        save(path, parts, epoch + 1)
        print(f"Epoch [{epoch + 1}/{EPOCHS}], last loss {loss:.4f}", flush=True)
        if asked:
            sys.exit(75)
    torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "run"))
