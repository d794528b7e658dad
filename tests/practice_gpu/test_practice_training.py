"""Ordinary training code runs on the practice GPU, unmodified, and computes what the CPU computes."""

import copy
import io
import multiprocessing
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from practice_gpu import practice_gpu


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


def fashion() -> list[float]:
    """Train for two epochs as beginners do, with a running loss; then evaluate."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=1e-3)
    results = []
    for _ in range(2):
        model.train()
        running_loss = 0.0
        for images, labels in DataLoader(Images(640), batch_size=64, shuffle=True):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        results.append(running_loss)
    model.eval()
    with torch.no_grad():
        for images, labels in DataLoader(Images(128), batch_size=64):
            predicted = model(images.to(device)).argmax(dim=1)
            results.append((predicted == labels.to(device)).sum().item())
    return results


def test_a_loop_computes_what_the_cpu_computes():
    expected = fashion()
    with practice_gpu(force=True) as gpu:
        found = fashion()
        assert gpu.memory().peak > 0
    assert found == expected
    assert found[0] != found[1]


def test_a_cnn_with_all_that_belongs_to_it(gpu):
    """BatchNorm, Dropout, scheduler, autocast, GradScaler and gradient clipping."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(8 * 13 * 13, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    scaler = torch.amp.GradScaler("cuda")
    losses = []
    for _ in range(4):
        for images, labels in DataLoader(Images(128), batch_size=32):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(images.cuda())
                loss = F.cross_entropy(logits, labels.cuda())
            assert logits.dtype is torch.bfloat16
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        scheduler.step()
    state = [value["momentum_buffer"] for value in optimizer.state.values()]
    tensors = [*model.parameters(), *model.buffers(), *state, norm]
    assert {str(tensor.device) for tensor in tensors} == {"cuda:0"}
    assert losses[-1] < losses[0] / 2
    assert (scheduler.get_last_lr(), scaler.get_scale()) == ([0.05 * 0.25], 65536.0)


def test_the_scaler_skips_a_step_that_overflowed(gpu):
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 32768.0


def recurrent(device: str) -> list[float]:
    """An LSTM with an embedding, packed sequences, and a linear head."""
    torch.manual_seed(0)
    embedding, head = nn.Embedding(20, 6).to(device), nn.Linear(16, 3).to(device)
    lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True).to(device)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *lstm.parameters(), *head.parameters()], lr=0.01)
    words, targets = torch.randint(0, 20, (12, 7)).to(device), torch.randint(0, 3, (12,)).to(device)
    lengths = torch.tensor([7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1])
    losses = []
    for _ in range(3):
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


@pytest.mark.parametrize("loop", [recurrent, transformer])
def test_other_architectures_compute_what_the_cpu_computes(loop):
    expected = loop("cpu")
    with practice_gpu(force=True):
        found = loop("cuda")
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("map_location", [None, "cpu", "cuda", torch.device("cuda:0"), {"cuda:0": "cpu"}])
def test_optimizer_state_resumes_with_and_without_map_location(gpu, map_location):
    inputs = torch.rand(16, 5, generator=torch.Generator().manual_seed(1)).cuda()
    targets = inputs.sum(dim=1, keepdim=True)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Linear(5, 1).cuda()
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
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": copy.deepcopy(optimizer.state_dict())}, file)
    file.seek(0)
    model, optimizer = build()
    checkpoint = torch.load(file, map_location=map_location)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert steps(model, optimizer, 2) == straight


def loaded(device: str, **options: Any) -> torch.Tensor:
    """Sum what a DataLoader yields, on the device."""
    total = torch.zeros((), device=device)
    for images, labels in DataLoader(Images(50), batch_size=16, **options):
        total += images.to(device, non_blocking=True).sum() + labels.to(device, non_blocking=True).sum()
    return total


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"pin_memory": True}, {"num_workers": 2, "pin_memory": True}], ids=str
)
def test_data_loaders_with_workers_and_pinned_memory(gpu, options):
    expected, found = loaded("cpu"), loaded("cuda", **options)
    assert found.is_cuda
    assert found.item() == pytest.approx(expected.item())


def test_pinned_batches_do_not_make_the_host_wait(gpu):
    for pinned, waits in ((True, 0), (False, 8)):
        gpu.clear_events()
        loaded("cuda", pin_memory=pinned)
        copies = [event for event in gpu.events if event.kind == "host to device" and event.call == ".to()"]
        assert sum(event.count for event in copies) == 8
        assert sum(event.waits for event in copies) == waits


@pytest.mark.slow
def test_a_dataset_on_the_device_cannot_feed_forked_workers(gpu):
    dataset = TensorDataset(torch.arange(6.0, device="cuda"), torch.arange(6, device="cuda"))
    assert all(part.is_cuda for batch in DataLoader(dataset, batch_size=3) for part in batch)
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(DataLoader(dataset, batch_size=3, num_workers=1, multiprocessing_context="fork"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_forked_child_may_use_cuda_only_if_its_parent_has_not():
    def work():
        torch.ones(2).cuda().sum().item()

    def exit_code():
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(60)
        return child.exitcode

    with practice_gpu(force=True):
        assert exit_code() == 0
        assert not torch.cuda.is_initialized()
        work()
        assert exit_code() == 1


def test_moving_a_model_keeps_its_identity_and_an_optimizer_built_before(gpu):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model[0].weight
    assert model.to("cuda") is model
    assert model[0].weight is weight
    assert {str(t.device) for t in [*model.parameters(), *model.buffers()]} == {"cuda:0"}
    model(torch.rand(4, 3, device="cuda")).sum().backward()
    assert weight.grad.is_cuda
    before = weight.tolist()
    optimizer.step()
    assert weight.tolist() != before
    assert model.cpu() is model
    assert not weight.is_cuda
    assert not weight.grad.is_cuda


PLAIN = "Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam ASGD Rprop LBFGS"
OPTIMIZERS: dict[str, dict[str, object]] = {
    **{name: {} for name in PLAIN.split()},
    "Adam, fused": {"fused": True},
    "Adam, one by one": {"foreach": False},
    "Adam, amsgrad": {"amsgrad": True},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "SGD, fused": {"momentum": 0.9, "fused": True},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_on_the_cpu(name):
    def train(device):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        kind = getattr(torch.optim, name.split(",")[0])
        optimizer = kind(model.parameters(), lr=0.1, **OPTIMIZERS[name])
        inputs = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)).to(device)

        def closure():
            optimizer.zero_grad()
            loss = (model(inputs) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return model.weight.detach()

    expected = train("cpu")
    with practice_gpu(force=True):
        found = train("cuda")
        assert found.is_cuda
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_gradients_flow_back_through_a_move(gpu):
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = x.to("cuda")
    assert y.grad_fn.name() == "ToCopyBackward0"
    assert not y.is_leaf
    (y**2).sum().cpu().backward()
    assert x.grad.tolist() == [4.0, 6.0]
    assert x.grad.device.type == "cpu"
