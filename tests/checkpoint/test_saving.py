"""Checkpoints: the same bits after a resume; no damaged, foreign or hostile file loads silently."""

import copy
import gc
import json
import math
import os
import random
import shutil
import stat
import struct
import sys
import threading
from collections import Counter, OrderedDict, deque
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import forged
import numpy as np
import pytest
import safetensors.torch
import torch
from autosave_run import NoisySamples, noisy_parts
from optimizers import INPUTS, RUNS, learn, make, sequence
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from gpulesson import _files
from gpulesson.checkpoint import (
    CheckpointError,
    latest,
    load_checkpoint,
    resume,
    save_checkpoint,
    saving,
    tensorfile,
)
from gpulesson.checkpoint.plain import decode, pack

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint64,
        torch.uint32,
        torch.uint16,
        torch.uint8,
    ),
    *(torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]

EPOCHS = 5


def make_run(*, explicit_generator=True, num_workers=0, seed=0, device="cpu"):
    """Build everything a run has: dropout, batch norm, a shuffled loader, Adam and a scheduler."""
    parts = noisy_parts(seed, device=device)
    generator = torch.Generator().manual_seed(seed) if explicit_generator else None
    loader = DataLoader(
        NoisySamples(), batch_size=8, shuffle=True, generator=generator, num_workers=num_workers
    )
    return loader, parts | {"generator": generator}


def train(folder, loader, parts, *, first=0, epochs=EPOCHS, device="cpu"):
    for epoch in range(first, epochs):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(parts["model"](inputs.to(device)), targets.to(device))
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
        parts["scheduler"].step()
        save_checkpoint(Path(folder) / f"epoch-{epoch + 1}.safetensors", epoch=epoch + 1, **parts)


def same(left, right):
    """Whether two nests of containers hold the same types, values and tensor bits."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def bits(tensor):
    plain = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def state_of(parts):
    """Copy all that a resume may change, RNG states included."""
    states = {
        name: part.get_state() if name == "generator" else part.state_dict()
        for name, part in parts.items()
        if part is not None
    }
    numpy_keys = np.random.get_state()[1].tolist()
    return copy.deepcopy(
        states | {"cpu": torch.get_rng_state(), "python": random.getstate(), "numpy": numpy_keys}
    )


def content_of(path):
    """Return all that a file holds, but for the time of saving."""
    found = vars(load_checkpoint(path))
    return {name: value for name, value in found.items() if name not in ("path", "saved")}


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a run with one step behind it, alone in its folder, and the run's parts."""
    loader, parts = make_run()
    train(tmp_path / "run", loader, parts, epochs=1)
    return tmp_path / "run" / "epoch-1.safetensors", parts


def with_digest(content, path, epoch=0, step=0):
    """Write any content with a right digest, as a program that knows the format could."""
    content = {name: value for name, value in content.items() if name not in ("epoch", "step")}
    metadata = {"gpulesson checkpoint": "3", "epoch": str(epoch), "step": str(step)}
    metadata["saved"] = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    return saving.write_checkpoint(path, pack(content), metadata)


# --- the same bits after a resume --------------------------------------------------------------------------


@pytest.mark.parametrize("explicit_generator", [True, False], ids=["own generator", "global generator"])
def test_resume_after_any_epoch_ends_with_the_same_bits(tmp_path, explicit_generator):
    loader, parts = make_run(explicit_generator=explicit_generator)
    train(tmp_path / "whole", loader, parts)
    for done in range(1, EPOCHS):
        loader, parts = make_run(explicit_generator=explicit_generator, seed=100 + done)  # all of it wrong
        found = load_checkpoint(tmp_path / "whole" / f"epoch-{done}.safetensors")
        first = resume(found, **parts)
        assert first == done
        train(tmp_path / f"after-{done}", loader, parts, first=first)
        for epoch in range(done + 1, EPOCHS + 1):
            name = f"epoch-{epoch}.safetensors"
            assert same(content_of(tmp_path / f"after-{done}" / name), content_of(tmp_path / "whole" / name))


def test_another_global_generator_of_numpy_is_refused(tmp_path):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        with pytest.raises(CheckpointError, match="NumPy's global generator is PCG64, and only"):
            save_checkpoint(tmp_path / "a.safetensors", model=LINEAR, epoch=1)
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.gpu
def test_resume_on_a_gpu_ends_with_the_same_bits(tmp_path):
    loader, parts = make_run(device="cuda")
    train(tmp_path / "whole", loader, parts, device="cuda")
    expected = load_checkpoint(tmp_path / "whole" / f"epoch-{EPOCHS}.safetensors")
    assert set(expected.rng) >= {f"cuda:{index}" for index in range(torch.cuda.device_count())}
    loader, parts = make_run(device="cuda", seed=1)
    found = load_checkpoint(tmp_path / "whole" / "epoch-2.safetensors")
    train(tmp_path / "after", loader, parts, first=resume(found, **parts), device="cuda")
    assert same(content_of(tmp_path / "after" / "epoch-5.safetensors"), content_of(expected.path))


@pytest.mark.parametrize("run", RUNS)
def test_the_state_of_each_optimizer_and_scheduler_survives(tmp_path, run):
    parts = make(run)
    for _ in range(3):
        learn(parts)
    found = load_checkpoint(save_checkpoint(tmp_path / "a.safetensors", epoch=3, **parts))
    for _ in range(3):
        learn(parts)
    for _ in range(2):  # from one checkpoint: the first resumed run must not change what the second gets
        again = make(run)
        learn(again, inputs=-INPUTS)
        resume(found, **again)
        for _ in range(3):
            learn(again)
        assert same(state_of(again), state_of(parts))


def test_states_of_all_accelerators_are_kept(tmp_path, monkeypatch):
    states = {0: torch.tensor([1, 2], dtype=torch.uint8), 1: torch.tensor([3, 4], dtype=torch.uint8)}
    backend = SimpleNamespace(
        is_initialized=lambda: True,
        get_rng_state=lambda device: states[device.index].clone(),
        set_rng_state=lambda state, device: states.update({device.index: state}),
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: backend)
    model = nn.Linear(1, 1)
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=1)
    states.update({index: torch.zeros(2, dtype=torch.uint8) for index in states})
    resume(load_checkpoint(path), model=model)
    assert [states[index].tolist() for index in (0, 1)] == [[1, 2], [3, 4]]

    backend.is_initialized = lambda: False  # a run on the CPU must not occupy, or wait for, a GPU
    unused = load_checkpoint(save_checkpoint(tmp_path / "b.safetensors", model=model, epoch=1))
    assert not {"cuda:0", "cuda:1"} & unused.rng.keys()

    monkeypatch.undo()
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    with pytest.warns(UserWarning, match="no cuda:0, cuda:1 here, whose random numbers"):
        resume(load_checkpoint(path), model=model)


# --- the file ----------------------------------------------------------------------------------------------


def test_any_reader_of_safetensors_opens_the_file_and_its_digest_is_of_its_content(saved):
    path, parts = saved
    weights = safetensors.torch.load_file(path)
    model = make_run(seed=1)[1]["model"]
    model.load_state_dict(
        {name.removeprefix("model."): weights[name] for name in weights if name.startswith("model.")}
    )
    assert same(dict(model.state_dict()), dict(parts["model"].state_dict()))
    content = json.loads(bytes(weights["checkpoint.json"].tolist()))
    assert content["optimizer"]["param_groups"][0]["lr"] == 0.01

    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert forged.digest_of(*forged.take_apart(path.read_bytes())) == metadata["content sha256"]
    assert (metadata["gpulesson checkpoint"], metadata["epoch"], metadata["step"]) == ("3", "1", "0")
    found = load_checkpoint(path)
    assert (found.epoch, found.path, found.extra, found.saved) == (1, path, None, metadata["saved"])
    assert len(repr(found)) < 300


def test_extra_values_come_back(tmp_path):
    shared, strided = torch.ones(2), torch.arange(6.0).reshape(2, 3).t()
    extra = {
        "losses": [0.5, 0.1, -0.0, 5e-324, float("inf"), -float("inf")],
        "settings": {"lr": 1e-3, "name": "ü\x1b\ud800", 3: True, "$float": None, "": 10**40, (1, 2): [[]]},
        "pair": (1, (2.0, ())),
        "ordered": OrderedDict(b=1, a=2),
        "counted": Counter({3: 2}),
        "last": deque([1, 2], maxlen=2),
        "set": {1, 2},
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1")],
        "scale": torch.tensor(65536.0),
        "strided": strided,
        "empty": [torch.zeros(0, width) for width in range(8)],  # which have no order in a file
        "a.b": torch.zeros(1),
        "a": {"b": torch.ones(1)},
    }
    extra |= {str(dtype): torch.ones(2, 3).to(dtype) for dtype in DTYPES}
    extra |= {"conjugate": (torch.ones(2) * 1j).conj(), "first": shared, "second": shared}
    path = tmp_path / "new" / "folder" / "a.safetensors"
    found = load_checkpoint(
        str(save_checkpoint(str(path), model=nn.Linear(1, 1), epoch=0, extra=extra))
    ).extra
    assert same(found, extra)
    assert type(found["counted"]) is Counter and found["last"].maxlen == 2
    assert found["first"] is found["second"]  # stored once, and one again
    assert math.isnan(load_checkpoint(save_checkpoint(path, model=LINEAR, epoch=0, extra=math.nan)).extra)
    safetensors.torch.load_file(path)


def test_tied_weights_are_stored_once(tmp_path):
    model = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    model[1].weight = model[0].weight
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=1)
    assert path.stat().st_size < 1.2 * 4 * 300 * 300
    other = copy.deepcopy(model)
    nn.init.zeros_(other[0].weight)
    resume(load_checkpoint(path), model=other)
    assert other[0].weight is other[1].weight and torch.equal(other[0].weight, model[0].weight)
    nn.init.zeros_(other[0].weight)  # as the module's docstring says, without this package
    saved = safetensors.torch.load_file(path)
    weights = {name.removeprefix("model."): saved[name] for name in saved if name.startswith("model.")}
    other.load_state_dict(weights, strict=False)
    assert torch.equal(other[1].weight, model[0].weight)


def test_permissions_follow_the_umask_or_the_file_before(saved):
    path, parts = saved
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o600)
    save_checkpoint(path, epoch=2, **parts)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 or os.name == "nt"


def test_the_file_is_synced_before_the_renaming_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), replace(self, to))[1])
    save_checkpoint(tmp_path / "a.safetensors", model=nn.Linear(1, 1), epoch=1)
    assert events == ["file", "rename", "folder"]


def test_the_place_within_an_epoch_comes_back(tmp_path):
    position = {"order": torch.tensor([2, 0, 1]), "worker seeds": [5, 6]}
    model = nn.Linear(1, 1)
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=2, step=7, position=position)
    found = load_checkpoint(path)
    assert (found.epoch, found.step) == (2, 7)
    assert same(found.position, position)
    assert resume(found, model=model) == 2
    without = load_checkpoint(save_checkpoint(path, model=model, epoch=2, step=7))
    with pytest.warns(
        UserWarning, match=r"a.safetensors was saved after 7 batches of an epoch, .* starts over"
    ):
        assert resume(without, model=model) == 2


@pytest.mark.parametrize("name", ["epoch", "step"])
@pytest.mark.parametrize("value", ["x", float("nan"), -1, True, 3.0, None, 10**12])
def test_a_place_that_is_no_count_is_refused_before_anything_is_written(tmp_path, name, value):
    with pytest.raises(
        CheckpointError,
        match=rf"a.safetensors was not written: {name} is .*whole number \(an int\), 0 or more",
    ):
        save_checkpoint(
            tmp_path / "new" / "a.safetensors", **{"model": nn.Linear(1, 1), "epoch": 1, name: value}
        )
    assert list(tmp_path.iterdir()) == []


# --- latest ------------------------------------------------------------------------------------------------


def test_latest_goes_by_epoch_then_step_then_time(tmp_path, monkeypatch):
    clock = [datetime(2026, 1, 2, tzinfo=timezone.utc)]
    monkeypatch.setattr(saving, "datetime", SimpleNamespace(now=lambda zone: clock[0]))
    model = nn.Linear(1, 1)

    def save(name, **place):
        clock[0] -= timedelta(hours=1)  # each file is saved by a clock that was set back
        return save_checkpoint(tmp_path / name, model=model, **place)

    for epoch, step in [(6, 0), (6, 9), (6, 10), (7, 0), (10, 0)]:
        newest = save(f"epoch-{epoch}-{step}.safetensors", epoch=epoch, step=step)
        assert latest(tmp_path) == newest
    save("earlier.safetensors", epoch=10)
    assert latest(tmp_path) == newest
    clock[0] += timedelta(days=1)
    newest = save("later.safetensors", epoch=10)
    assert latest(tmp_path) == newest
    assert latest(str(tmp_path), pattern="e*.safetensors") == tmp_path / "epoch-10-0.safetensors"


def flip_a_bit(path):
    content = path.read_bytes()
    path.write_bytes(content[:-400] + bytes([content[-400] ^ 1]) + content[-399:])


def test_latest_passes_over_damaged_files_by_name(tmp_path):
    paths = [
        save_checkpoint(tmp_path / f"epoch-{epoch}.safetensors", model=nn.Linear(9, 9), epoch=epoch)
        for epoch in (1, 2, 3, 4)
    ]
    flip_a_bit(paths[3])
    paths[2].write_bytes(paths[2].read_bytes()[:2000])
    with pytest.warns(UserWarning) as warned:
        assert latest(tmp_path) == paths[1]
    messages = [str(warning.message) for warning in warned]
    assert len(messages) == 2
    assert "epoch-3.safetensors" in messages[0] and "not a whole safetensors file" in messages[0]
    assert "epoch-4.safetensors" in messages[1] and "its digest is not that of its content" in messages[1]
    assert Path(warned[0].filename) == Path(__file__)


@pytest.mark.parametrize("times", [1, 2])
def test_latest_names_a_file_that_cannot_be_read_even_if_that_passes(tmp_path, monkeypatch, times):
    """An error that came once must not make an older file the latest, or go unsaid."""
    for epoch in (1, 2, 3):
        save_checkpoint(tmp_path / f"{epoch}.safetensors", model=nn.Linear(1, 1), epoch=epoch)
    really = saving.open_tensors
    for bad, expected in (("1.safetensors", "3.safetensors"), ("3.safetensors", "2.safetensors")):
        errors = [OSError(5, "Input/output error")] * times

        def failing(path, bad=bad, errors=errors):
            if errors and path.name == bad:
                raise errors.pop()
            return really(path)

        monkeypatch.setattr(saving, "open_tensors", failing)
        with pytest.warns(UserWarning, match=rf"passed over: .*{bad} was not loaded.*Input/output error"):
            assert latest(tmp_path) == tmp_path / expected


def test_latest_without_a_valid_file(tmp_path):
    assert latest(tmp_path / "absent") is None
    assert latest(tmp_path) is None
    path = tmp_path / "weights.safetensors"
    torch.save({}, path)
    with (
        pytest.warns(UserWarning, match=r"weights.safetensors is a file of torch\.save"),
        pytest.raises(CheckpointError, match=r"start over: weights.safetensors"),
    ):
        latest(tmp_path)
    with pytest.raises(CheckpointError, match=r"Cannot look for checkpoints in .*NotADirectoryError"):
        latest(path)


# --- damage ------------------------------------------------------------------------------------------------


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(saved):
    path, _ = saved
    with tensorfile.open_tensors(path) as file:
        os.truncate(path, path.stat().st_size - 2000)
        with pytest.raises(tensorfile.Refused, match=r"its tensor \S+ cannot be read"):
            file.read()


def test_a_damaged_mark_of_the_version_is_called_damage(saved):
    path, _ = saved
    path.write_bytes(path.read_bytes().replace(b'checkpoint":"3"', b'checkpoint":"7"'))
    with pytest.raises(CheckpointError, match=r"is damaged, .*: its digest is not that of its content"):
        load_checkpoint(path)


FOREIGN = {
    "text": (
        lambda path: path.write_text("epoch,loss\n1,0.5\n" * 50),
        "does not begin as a safetensors",
    ),
    "zip": (
        lambda path: shutil.make_archive(str(path.with_suffix("")), "zip", path.parent / "folder"),
        "does not begin as a safetensors",
    ),
    "torch.save": (
        lambda path: torch.save({"model": nn.Linear(9, 9).state_dict(), "epoch": 3}, path),
        r"a.zip is a file of torch.save, which is not read here.*torch.load\(path, weights",
    ),
    "weights": (
        lambda path: safetensors.torch.save_model(LINEAR, str(path)),
        "but not one of save_checkpoint.*load_model",
    ),
    "safetensors": (lambda path: safetensors.torch.save_file({}, path), "but not one of save_checkpoint"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_files_are_refused(tmp_path, kind):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "a.zip"
    write, said = FOREIGN[kind]
    write(path)
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(path)


def test_missing_files_and_folders_are_named(saved, tmp_path):
    path, _ = saved
    with pytest.raises(
        CheckpointError, match=r"epoch-2.safetensors does not exist. In .*run there is: epoch-1.safetensors"
    ) as error:
        load_checkpoint(path.with_name("epoch-2.safetensors"))
    assert isinstance(error.value.__cause__, FileNotFoundError)
    with pytest.raises(CheckpointError, match=r"does not exist. In .*absent there is: nothing"):
        load_checkpoint(tmp_path / "absent" / "a.safetensors")
    (path.parent / "link.safetensors").symlink_to("nowhere.safetensors")
    with pytest.raises(CheckpointError, match=r"is a link to nowhere\.safetensors, which does not exist"):
        load_checkpoint(path.parent / "link.safetensors")
    with pytest.raises(CheckpointError, match=r"run was not loaded: it is a folder, .*latest\(folder\)"):
        load_checkpoint(path.parent)


# --- what does not fit -------------------------------------------------------------------------------------


class Other(nn.Sequential):
    """The run's model with a wider layer, one tensor less and one more."""

    def __init__(self):
        super().__init__(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 5, bias=False)
        )
        self.scale = nn.Parameter(torch.ones(()))


SAVED_ADAM = "Adam with groups of [6] parameters in the file"


def refuse(path, parts):
    """Resume, expect an error, and check that it changed nothing; return the lines of its message."""
    before = state_of(parts)
    with pytest.raises(CheckpointError, match="does not fit; nothing was loaded") as error:
        resume(load_checkpoint(path), **parts)
    assert same(state_of(parts), before)
    return str(error.value).splitlines()[1:]


def test_another_architecture_is_refused_before_anything_is_changed(saved):
    path, _ = saved
    _, parts = make_run(seed=1)
    model = Other()
    parts |= {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    parts["scheduler"] = lr_scheduler.StepLR(parts["optimizer"], 1)
    assert refuse(path, parts) == [
        "  model scale: None in the file, torch.float32 [] given",
        "  model 4.weight: torch.float32 [3, 16] in the file, torch.float32 [5, 16] given",
        "  model 4.bias: torch.float32 [3] in the file, None given",
    ]


def test_an_optimizer_over_the_same_parameters_in_another_order_is_refused(tmp_path):
    def build(order):
        model = nn.Module()
        model.a, model.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
        other = nn.Parameter(torch.ones(2))  # a loss function may learn, too
        parameters = {"a": model.a, "b": model.b, "other": other}
        return {"model": model, "optimizer": torch.optim.Adam([parameters[name] for name in order])}

    for order, other, line in [
        (["a", "b"], ["b", "a"], "  optimizer parameter 0: a in the file, b given"),
        (
            ["a", "other"],
            ["other", "a"],
            "  optimizer parameter 0: a in the file, not of the model, torch.float32 [2] given",
        ),
    ]:
        path = save_checkpoint(tmp_path / "a.safetensors", epoch=1, **build(order))
        assert refuse(path, build(other))[0] == line
        assert resume(load_checkpoint(path), **build(order)) == 1


def test_parameters_outside_the_model_that_nothing_tells_apart_are_refused(tmp_path):
    def build(order, named=True):
        model, others = nn.Linear(2, 2), {name: nn.Parameter(torch.zeros(3)) for name in ("first", "second")}
        pairs = [*model.named_parameters(), *((name, others[name]) for name in order)]
        return {
            "model": model,
            "optimizer": torch.optim.Adam(pairs if named else [each for _, each in pairs]),
        }

    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointError, match=r"has 2 parameters \(not of the model, torch.float32 \[3\]\)"):
        save_checkpoint(path, epoch=1, **build(["first", "second"], named=False))
    save_checkpoint(path, epoch=1, **build(["first", "second"]))
    assert refuse(path, build(["second", "first"]))[0] == (
        "  optimizer parameter 2: not of the model, first in the file, not of the model, second given"
    )
    assert resume(load_checkpoint(path), **build(["first", "second"])) == 1


def test_many_differences_are_counted(saved):
    path, _ = saved
    _, parts = make_run()
    parts["model"] = nn.Sequential(*parts["model"], *[nn.Linear(2, 2) for _ in range(9)])
    lines = refuse(path, parts)
    assert len(lines) == 13
    assert lines[-1] == "  and 6 more"


def test_other_parts_are_refused(saved):
    path, _ = saved
    _, parts = make_run(seed=1)
    model = parts["model"]

    def with_optimizer(optimizer):
        return parts | {"optimizer": optimizer, "scheduler": lr_scheduler.StepLR(optimizer, 2)}

    assert refuse(path, with_optimizer(torch.optim.SGD(model.parameters()))) == [
        f"  optimizer: {SAVED_ADAM}, SGD with groups of [6] parameters given"
    ]
    assert refuse(path, with_optimizer(torch.optim.Adam(model[4].parameters()))) == [
        f"  optimizer: {SAVED_ADAM}, Adam with groups of [2] parameters given"
    ]
    assert refuse(path, {"model": model}) == [
        f"  optimizer: {SAVED_ADAM}, None given",
        "  scheduler: StepLR in the file, None given",
        "  generator: a generator of the cpu in the file, None given",
    ]
    alone = save_checkpoint(path, model=model, epoch=1)
    assert refuse(alone, parts | {"optimizer": None, "generator": None}) == [
        "  scheduler: None in the file, StepLR given"
    ]
    assert refuse(alone, {"model": nn.Sequential(*model).double()})[0] == (
        "  model 0.weight: torch.float32 [16, 6] in the file, torch.float64 [16, 6] given"
    )


def malformed(path, **changes):
    """Write a checkpoint again with other content, and a right digest."""
    content = content_of(path)
    for keys, value in changes.items():
        *way, last = keys.split("__")
        holder = content
        for key in way:
            holder = holder[int(key) if key.isdigit() else key]
        if value is NONE:
            del holder[last]
        else:
            holder[int(last) if last.isdigit() and isinstance(holder, list) else last] = value
    return with_digest(content, path, content["epoch"], content["step"])


def twisted(left: int, following: int) -> torch.Tensor:
    """Return a generator's state with other places in it, which stand behind the seed."""
    state = bytearray(torch.Generator().get_state().numpy().tobytes())
    struct.pack_into("<iiQ", state, 8, left, 1, following)
    return torch.frombuffer(state, dtype=torch.uint8)


NONE = object()
MALFORMED = {  # one for each thing that is compared; `tests/trust` changes a thousand
    "a model's tensor of another shape": (
        {"model__4.bias": torch.zeros(7)},
        r"4.bias: torch.float32 \[7\] in",
    ),
    "a model's text": ({"model__4.bias": "zero"}, "4.bias: str in the file"),
    "a model's tensor too few": ({"model__4.bias": NONE}, "4.bias: None in the file"),
    "moments of another shape": (
        {"optimizer__state__3__exp_avg": torch.zeros(7)},
        r"a parameter exp_avg is a torch.float32 of shape \[7\], not a torch.float32 of shape \[16\]",
    ),
    "a moment too few": ({"optimizer__state__3__exp_avg_sq": NONE}, "a parameter lacks exp_avg_sq"),
    "a moment too many": ({"optimizer__state__3__more": torch.zeros(16)}, "a parameter has also more"),
    "a step of NaN": (
        {"optimizer__state__3__step": torch.tensor(math.nan)},
        "the optimizer's step is nan, not a finite number that is not negative",
    ),
    "a step of one byte": (
        {"optimizer__state__3__step": torch.tensor(3, dtype=torch.uint8)},
        r"the optimizer's step is tensor\(3, dtype=torch.uint8\), not a finite number",
    ),
    "a huge learning rate": ({"optimizer__param_groups__0__lr": 10**400}, "lr is 10000.*, not a finite"),
    "a learning rate that is true": ({"optimizer__param_groups__0__lr": True}, "lr is True or False, not"),
    "no learning rate": ({"optimizer__param_groups__0__lr": NONE}, "group 0 lacks lr"),
    "betas beyond their range": (
        {"optimizer__param_groups__0__betas": (2.0, 0.9)},
        "cannot take a step with these options and states: Invalid beta parameter at index 0: 2.0",
    ),
    "moments that are no dict": ({"optimizer__state": {0: [1, 2]}}, "a parameter is a list, not a dict"),
    "moments of no parameter": ({"optimizer__state": {77: {"step": 1}}}, "belong to no parameter"),
    "no moments at all": ({"optimizer__state": NONE}, "the optimizer's state lacks state"),
    "no groups": ({"optimizer__param_groups": []}, "state param_groups has 0 entries, not 1"),
    "a divisor of zero": ({"scheduler__step_size": 0}, "step_size is 0, not an int from 1"),
    "no state of the scheduler": ({"scheduler": {}}, "the scheduler's state lacks step_size"),
    "a scheduler's method": ({"scheduler__step": 3}, "the scheduler's state would replace step"),
    "a scheduler's list": ({"scheduler__base_lrs": [0.1, 0.2]}, "base_lrs has 2 entries, not 1"),
    "a short state of the generator": (
        {"generator": torch.zeros(3, dtype=torch.uint8)},
        r"the generator's state is a torch.uint8 of shape \[3\]",
    ),
    "numbers beyond the generator's memory": ({"generator": twisted(600, 100)}, "generator's state: there c"),
    "no state of torch": ({"rng__cpu": NONE}, "rng lacks cpu"),
    "numbers beyond torch's memory": (
        {"rng__cpu": twisted(624, 624)},
        "rng cpu: there cannot be 624 numbers left from number 624 of 624 on",
    ),
    "a wrong state of python": ({"rng__python__version": 77}, "rng python: state with version 77"),
    "a text for python's gauss": ({"rng__python__gauss": "x"}, "rng python gauss is a str, not a number"),
    "a position beyond numpy's memory": ({"rng__numpy__pos": 2**28}, "pos is 268435456, not an int from 0"),
    "a float for numpy's position": ({"rng__numpy__pos": 1e6}, "numpy pos is 1000000.0, not an int"),
    "a generator with a foreign name": ({"rng__\x1b[2J": torch.zeros(1)}, r"rng has \\x1b\[2J, which is no"),
    "a number in the outline": ({"outline__model a": 3}, "model a: 3 in the file, None given"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_changes_nothing(saved, case):
    path, _ = saved
    changes, match = MALFORMED[case]
    _, parts = make_run(seed=1)
    before = state_of(parts)
    found = load_checkpoint(malformed(path, **changes))
    with pytest.raises(CheckpointError, match=f"(?s)nothing was loaded.*{match}"):
        resume(found, **parts)
    assert same(state_of(parts), before)
    assert not {"step", "get_lr"} & vars(parts["scheduler"]).keys()
    parts["optimizer"].zero_grad()
    parts["optimizer"].step()  # it goes on as if nothing had been


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (5, "is a number, not a dict"),
        ({"version": 1, "assign_to_params_buffers": True}, "has also assign_to_params_buffers"),
    ],
)
def test_versions_of_modules_are_compared(saved, versions, message):
    """PyTorch believes them: the last would give the model tensors that its optimizer does not know."""
    path, parts = saved
    content = content_of(path)
    content["model"]._metadata["0"] = versions
    with pytest.raises(CheckpointError, match=f"nothing was loaded: the version of the module 0 {message}"):
        resume(load_checkpoint(with_digest(content, path, epoch=1)), **parts)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (torch.optim.LBFGS, "d", torch.zeros(1)),
        (torch.optim.Adafactor, "col_var", torch.zeros(3, 1)),
    ],
)
def test_states_that_break_a_step_are_refused(tmp_path, kind, name, value):
    """These two cannot take a step on tensors without memory, which would tell the shapes of their states."""

    def make():
        model = nn.Linear(3, 2)
        optimizer = kind(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).square().sum()
            loss.backward()
            return loss

        return model, optimizer, closure

    model, optimizer, closure = make()
    optimizer.step(closure)
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, optimizer=optimizer, epoch=1)
    other, fresh, closure = make()
    resume(load_checkpoint(path), model=other, optimizer=fresh)
    fresh.step(closure)
    content = content_of(path)
    content["optimizer"]["state"][0][name] = value
    with pytest.raises(CheckpointError, match="nothing was loaded: the optimizer cannot take a step"):
        resume(load_checkpoint(with_digest(content, path, epoch=1)), model=other, optimizer=fresh)


def test_how_an_optimizer_computes_is_not_loaded(tmp_path):
    """A file of a GPU has options that a CPU refuses at the first step."""
    model = nn.Linear(3, 2)
    saved = torch.optim.Adam(model.parameters(), lr=0.5, foreach=True, capturable=True)
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, optimizer=saved, epoch=1)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    resume(load_checkpoint(path), model=model, optimizer=optimizer)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["foreach"], group["capturable"]) == (0.5, False, False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_a_malformed_file_leaves_schedulers_inside_a_scheduler_alone(tmp_path):
    def build(steps):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        parts = {"model": model, "optimizer": optimizer, "scheduler": sequence(optimizer)}
        for _ in range(steps):
            optimizer.step()
            parts["scheduler"].step()
        return parts

    path = save_checkpoint(tmp_path / "a.safetensors", epoch=3, **build(3))
    malformed(path, scheduler___schedulers__0__foreign=3)
    parts = build(1)
    before = state_of(parts)
    with pytest.raises(CheckpointError, match="state _schedulers 0 has also foreign"):
        resume(load_checkpoint(path), **parts)
    assert same(state_of(parts), before)


def test_another_pytorch_may_have_other_private_names(saved):
    path, _ = saved
    content = content_of(path)
    del content["scheduler"]["_is_initial"]
    content["scheduler"]["_of_a_later_version"] = 3
    for group in content["optimizer"]["param_groups"]:
        del group["decoupled_weight_decay"]  # which Adam knew not always, and adds itself
        group["of_a_later_version"] = None
    assert resume(load_checkpoint(with_digest(content, path, epoch=1)), **make_run(seed=1)[1]) == 1


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_a_fused_step_gets_no_state_in_another_memory_order(tmp_path, name):
    """Channels last: the file keeps no strides, and a fused step takes the numbers as they lie in memory."""

    def build():
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        options = {"momentum": 0.9} if name == "SGD" else {}
        return {
            "model": model,
            "optimizer": getattr(torch.optim, name)(model.parameters(), fused=True, **options),
        }

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.arange(75.0).reshape(1, 3, 5, 5).sin()).square().sum().backward()
        optimizer.step()

    parts, again = build(), build()
    step(**parts)
    resume(load_checkpoint(save_checkpoint(tmp_path / "a.safetensors", epoch=1, **parts)), **again)
    for each in (parts, again):
        step(**each)
    assert same(parts["model"].state_dict(), again["model"].state_dict())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": [1]}, "its model is invalid"),
        ({"optimizer": 3, "scheduler": "x"}, "its optimizer is invalid"),
        ({"rng": NONE}, "it has other parts"),
        ({"generator": 3}, "its generator is invalid"),
        ({"outline": {}}, "its optimizer is invalid"),
    ],
)
def test_a_file_with_other_kinds_of_values_is_refused(saved, changes, named):
    path, _ = saved
    content = {name: value for name, value in (content_of(path) | changes).items() if value is not NONE}
    with pytest.raises(CheckpointError, match=named):
        load_checkpoint(with_digest(content, path, epoch=1))


def test_a_file_of_another_version_is_not_called_damaged(saved, monkeypatch):
    path, _ = saved
    monkeypatch.setattr(saving, "_VERSION", "2")
    save_checkpoint(path.with_name("new.safetensors"), model=LINEAR, epoch=9)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"new.safetensors has version 2 of the format, and .* reads 3"):
        load_checkpoint(path.with_name("new.safetensors"))
    with pytest.warns(UserWarning, match="passed over: .*has version 2 of the format"):
        assert latest(path.parent) == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"$no":1}', "its JSON is not of the form"),
        (b'{"a":1,"a":{"$tensor":"a"}}', "its JSON repeats a name"),
        (b'{"$dict":[[1,2],[1,{"$tensor":"a"}]]}', "its JSON repeats a key"),
        (b'{"$dict":[1]}', "lacks pairs where save_checkpoint writes them"),
        (b'{"$tuple":1}', "lacks a list where save_checkpoint writes one"),
        (b'{"$float":"1"}', "lacks a float where save_checkpoint writes one"),
        (b'{"$Size":[9223372036854775808]}', "a shape that does not consist of ints"),
        (b'{"$tensor":"a","dtype":"torch.load"}', "lacks a dtype where save_checkpoint writes one"),
        (b'[{"$tensor":"a"},' + b"[" * 101 + b"]" * 102, "nested more than 100 deep"),
        (b"[]", "tensors that its JSON does not name"),
        (b"Infinity", "its JSON has a number"),
    ],
)
def test_json_that_nothing_here_wrote_is_refused(text, message):
    """One for each thing that is looked at; `tests/trust` changes a thousand."""
    with pytest.raises(tensorfile.Refused, match=message):
        decode(text, {"a": torch.zeros(3)})


def test_an_interrupt_while_resuming_changes_nothing(saved, monkeypatch):
    path, _ = saved
    _, parts = make_run(seed=1)
    before, found = state_of(parts), load_checkpoint(path)

    set_state = saving.set_rng_state

    def interrupted_once(state):
        monkeypatch.undo()
        set_state(state)
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "set_rng_state", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        resume(found, **parts)
    assert same(state_of(parts), before)


# --- mistakes ----------------------------------------------------------------------------------------------


LINEAR = nn.Linear(2, 2)
SGD = torch.optim.SGD(LINEAR.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": SGD}, r"the model is a SGD.*has state_dict\(\) and named_parameters\(\)"),
        ({"optimizer": LINEAR}, r"the optimizer is a Linear.*has state_dict\(\) and param_groups"),
        ({"scheduler": LINEAR}, r"the scheduler is a Linear.*has state_dict\(\) and step\(\)"),
        ({"scheduler": SGD}, "the scheduler is a SGD.*but no param_groups"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)},
            r"the optimizer changes no parameter of this model: build it from model.parameters\(\)",
        ),
        (
            {"optimizer": SGD, "scheduler": lr_scheduler.StepLR(torch.optim.SGD(LINEAR.parameters()), 2)},
            "another optimizer: build it from this one",
        ),
        ({"optimizer": torch.optim.SGD}, "the optimizer is the class SGD: give an object that has"),
        ({"generator": 3}, r"the generator is 3: give an object that has get_state\(\)"),
        ({"model": nn.LazyLinear(2)}, "the model's weight has no values yet: call a lazy model once"),
        ({"model": nn.Linear(2, 2, device="meta")}, r"the model's weight has no values yet.*to_empty\("),
    ],
)
def test_parts_that_were_mixed_up_or_hold_nothing_yet_are_refused(tmp_path, parts, message):
    path = save_checkpoint(tmp_path / "a.safetensors", model=LINEAR, epoch=1)
    found = load_checkpoint(path)
    parts = {"model": LINEAR} | parts
    for call in (lambda: save_checkpoint(path, epoch=2, **parts), lambda: resume(found, **parts)):
        with pytest.raises(CheckpointError, match=message):
            call()
    assert load_checkpoint(path).epoch == 1


class Remembering(nn.Linear):
    """A module with a state besides its tensors."""

    def __init__(self, remembered):
        super().__init__(1, 1)
        self.remembered = remembered

    def get_extra_state(self):
        return self.remembered

    def set_extra_state(self, state):
        self.remembered = state


@pytest.mark.parametrize("fresh", [None, {}, torch.zeros(0)])
@pytest.mark.parametrize("saved_state", [{"calls": 3}, torch.full((2,), float("nan")), 3])
def test_the_extra_state_of_a_module_may_be_anything(tmp_path, saved_state, fresh):
    model, other = nn.Sequential(Remembering(saved_state)), nn.Sequential(Remembering(fresh))
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=1)
    resume(load_checkpoint(path), model=other)
    assert same(other[0].remembered, saved_state)


def test_an_optimizer_of_others_may_keep_a_state_of_no_parameter(tmp_path):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state["calls"] = self.state.get("calls", 0) + 1

    def build():
        model = nn.Linear(2, 2)
        return {"model": model, "optimizer": Counting(model.parameters(), lr=0.1)}

    parts, again = build(), build()
    parts["optimizer"].step()
    resume(load_checkpoint(save_checkpoint(tmp_path / "a.safetensors", epoch=1, **parts)), **again)
    assert again["optimizer"].state["calls"] == 1


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (float("nan"), torch.float32),
        (float("inf"), torch.float16),
        (-float("inf"), torch.bfloat16),
        (float("nan"), torch.complex64),
    ],
)
def test_weights_that_are_not_finite_do_not_replace_the_last_good_state(tmp_path, value, dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dtype)
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=1)
    with torch.no_grad():
        model[1].weight[1, 0] = value
    with pytest.raises(
        CheckpointError, match=r"a.safetensors was not written: the model's 1.weight holds NaN or infinity"
    ):
        save_checkpoint(path, model=model, epoch=2)
    assert load_checkpoint(path).epoch == 1


def test_a_buffer_may_hold_infinity_but_not_nan(tmp_path):
    model = nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.full((2, 2), -float("inf")).triu(1))
    save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=1)
    model.running_mean[0] = float("nan")
    with pytest.raises(CheckpointError, match="running_mean holds NaN"):
        save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=2)
    model.register_buffer("running_mean", model.running_mean, persistent=False)  # then it is not saved
    save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=2)


# --- interrupts --------------------------------------------------------------------------------------------


def test_an_interrupt_on_entry_to_any_function_comes_through(tmp_path, request):
    """So none is a destructor, or the callback of a weak reference, where Python would only print it."""
    model = nn.Linear(3, 3)
    path = save_checkpoint(tmp_path / "a.safetensors", model=model, epoch=0)
    entered = {}

    def interrupt(frame, event, argument):
        if event == "call" and id(frame.f_code) not in entered:
            entered[id(frame.f_code)] = frame.f_code
            raise KeyboardInterrupt

    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # others' code, at any moment
    request.addfinalizer(lambda: gc.callbacks.extend(callbacks))
    while True:
        before = len(entered)
        sys.setprofile(interrupt)  # which Python takes away at the first error
        try:
            save_checkpoint(path, model=model, epoch=1)
        except KeyboardInterrupt:
            continue
        finally:
            sys.setprofile(None)
        assert list(entered.values())[before:] == []
        break
    assert len(entered) > 50
    assert [other.name for other in tmp_path.iterdir()] == ["a.safetensors"]


def test_an_error_after_the_file_has_its_name_does_not_say_that_it_was_not_written(tmp_path, monkeypatch):
    real = _files._new_part

    class Failing:
        def __init__(self, file):
            self.file = file

        def close(self):
            self.file.close()
            raise OSError(5, "Input/output error")

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(_files, "_new_part", lambda folder: Failing(real(folder)))
    path = save_checkpoint(tmp_path / "a.safetensors", model=LINEAR, epoch=1)
    assert load_checkpoint(path).epoch == 1


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="needs names that are no UTF-8, and links")
def test_names_that_are_no_utf_8(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    path = save_checkpoint(folder / os.fsdecode(b"a\xfe.safetensors"), model=nn.Linear(1, 1), epoch=1)
    assert load_checkpoint(path).epoch == 1
    assert latest(folder) == path
    flip_a_bit(path)
    with (
        pytest.warns(UserWarning, match=r"run\\udcff/a\\udcfe.safetensors is damaged"),
        pytest.raises(
            CheckpointError, match=r"No valid checkpoint in .*run\\udcff. .*: a\\udcfe.safetensors"
        ),
    ):
        latest(folder)
    with pytest.raises(
        CheckpointError, match=r"b.safetensors does not exist. In .*run\\udcff there is: a\\udcfe.safetensors"
    ):
        load_checkpoint(folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"a\\udcfe.safetensors was not written"):
        save_checkpoint(path, model=nn.Linear(1, 1), epoch=-1)


def test_a_name_with_a_nul_is_refused(tmp_path):
    name = f"{tmp_path}/a\0b.safetensors"
    with pytest.raises(CheckpointError, match=r"a\\x00b.safetensors was not written. ValueError: .*null"):
        save_checkpoint(name, model=nn.Linear(1, 1), epoch=1)
    with pytest.raises(CheckpointError, match=r"a\\x00b.safetensors was not loaded. ValueError: .*null"):
        load_checkpoint(name)
    with pytest.raises(
        CheckpointError, match=r"Cannot look for checkpoints in .*a\\x00b.safetensors. ValueError"
    ):
        latest(name)
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_another_is_handled_names_its_own_cause(saved):
    path, parts = saved
    found = load_checkpoint(malformed(path, rng__cpu=torch.zeros(3, dtype=torch.uint8)))
    calls = [
        lambda: save_checkpoint(path, model=LINEAR, epoch=1, extra=lambda: None),
        lambda: load_checkpoint("a\0b.safetensors"),
        lambda: latest("a\0b"),
        lambda: resume(found, **parts),
    ]
    for call in calls:
        try:
            raise OSError("the disk of before is full")
        except OSError:
            with pytest.raises(CheckpointError) as error:
                call()
        assert "the disk of before" not in str(error.value)


# --- what cannot be written --------------------------------------------------------------------------------


def fail_to_save(path, match, **arguments):
    """Save, expect an error, and check that the folder is as it was before, to the byte."""
    folder = path.parent if path.parent.is_dir() else path.parent.parent
    before = {other: other.read_bytes() for other in folder.rglob("*") if other.is_file()}
    with pytest.raises(CheckpointError, match=match) as error:
        save_checkpoint(path, **{"model": nn.Linear(9, 9), "epoch": 2, **arguments})
    assert error.value.__cause__ is not None
    assert {other: other.read_bytes() for other in folder.rglob("*") if other.is_file()} == before


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (Path("runs"), r"extra is an object of the class pathlib\S*Path; only tensors and plain"),
        ({"accuracy": np.float64(0.9)}, r"extra\['accuracy'\] is an object of the class numpy.float64"),
        ([{"a": (range(3),)}], r"extra\[0\]\['a'\]\[0\] is an object of the class range"),
        ({1: lambda: None}, r"extra\[1\] is an object of the class function"),
        ({threading.Lock(): 1}, r"extra\['the key <.*>'\] is an object of the class _thread.lock"),
        ({"x": np.zeros(2)}, r"extra\['x'\] is an object of the class numpy.ndarray"),
        ({"x": torch.eye(2).to_sparse()}, r"extra\['x'\] is .*sparse_coo.*only dense tensors with values"),
        ({"x": torch.zeros(2, device="meta")}, r"extra\['x'\] is .*meta.*only dense tensors with values"),
        ({"seen": {(number,) for number in range(201)}}, "201 keys that are neither strings nor numbers"),
        ([10**5000], "4300 digits"),
        (
            list(range(400_000)),
            "it has more than 300,000 values: long lists of numbers belong in",
        ),
        ("é" * 2**22, "it needs .* bytes of JSON"),
    ],
)
def test_what_could_not_be_read_back_is_refused_when_saving(saved, extra, named):
    fail_to_save(
        saved[0],
        rf"epoch-1.safetensors was not written[.:] .*{named}",
        extra=extra,
    )


def test_lists_that_hold_themselves_are_refused_when_saving(saved):
    itself, twice = [], [1]
    itself.append(itself)
    for _ in range(40):
        twice = [twice, twice]
    fail_to_save(saved[0], "is nested 100 deep", extra=itself)
    fail_to_save(saved[0], "more than 300,000 values", extra=twice)


def test_saving_beneath_a_file_or_onto_a_folder(saved):
    path, _ = saved
    fail_to_save(
        path / "below" / "a.safetensors", r"a.safetensors was not written. (NotADirectory|FileExists)Error"
    )
    (path.parent / "pickle.safetensors").mkdir()
    fail_to_save(
        path.parent / "pickle.safetensors",
        r"pickle.safetensors was not written. .*pickle.safetensors is a folder, not a file",
    )
