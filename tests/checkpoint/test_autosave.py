"""AutoSave: a run that is stopped anywhere ends with the same bits; signals, old files, and mistakes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import autosave_run
import numpy
import pytest
import safetensors
import torch
from torch import nn

from gpulesson.checkpoint import CheckpointError, autosave, load_checkpoint, save_checkpoint, saving
from gpulesson.checkpoint.autosave import AutoSave, Stopped
from gpulesson.data import Batches
from gpulesson.step import Step
from gpulesson.training import EpochLoss, NonFiniteLossError, fit

posix = pytest.mark.skipif(os.name != "posix", reason="needs the signals of POSIX")


class Killed(BaseException):
    """Ends a run as abruptly as an exception can."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def until_through(folder: Path, stops: list[int], **options) -> tuple[str, int]:
    """Run again and again, stopped after so many steps each; return the digest, and how often it was."""

    for stopped, after in enumerate([*stops, None]):
        steps = 0

        def hook(after=after) -> None:
            nonlocal steps
            steps += 1
            if steps == after:
                raise Killed

        try:
            return autosave_run.run(folder, hook=hook, **options), stopped
        except Killed:
            pass
    raise AssertionError("it never got through")


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def parts(model) -> dict:
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)}


def train(saves: AutoSave, epochs: int = 1, batches: int = 4) -> None:
    """Make steps that change the weights."""
    loader = Batches(torch.ones(2 * batches, 2), batch_size=2)
    for _ in saves.epochs(epochs):
        for (inputs,) in saves.batches(loader):
            saves.optimizer.zero_grad()
            saves.model(inputs).sum().backward()
            saves.optimizer.step()
            saves.step()


# --- the same bits -----------------------------------------------------------------------------------------

CASES = {
    "loader": {},
    "own generator": {"own_generator": True},
    "workers": {"workers": 2},
    "sampler that draws ahead of workers": {"workers": 2, "own_generator": True, "sampler": True},
    "one generator for loader and loop": {"own_generator": True, "share_generator": True},
    "Batches": {"feed": "batches"},
    "Batches, own generator": {"feed": "batches", "own_generator": True},
    "indices that the loop draws": {"feed": "indices"},
    "accumulated by hand": {"accumulate": 2, "every_steps": 1, "stops": [2, 4]},
    "fit": {"how": "fit"},
    "fit, accumulated, scheduler by step": {
        "how": "fit",
        "accumulate": 4,
        "scheduled_by": "step",
        "every_steps": 1,
        "stops": [2, 3],
    },
    "fit in float16, own generator": {"how": "fit", "amp": "fp16", "own_generator": True},
}
QUICK = "loader", "Batches", "fit"


@pytest.mark.parametrize(
    "case", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
def test_a_run_ends_with_the_same_bits_wherever_it_was_stopped(tmp_path, case):
    options = {"stops": [3, 8], **CASES[case]}  # within the first epoch, and within the second one
    stops = options.pop("stops")
    whole = autosave_run.run(tmp_path / "whole", **options)
    through, stopped = until_through(tmp_path / "run", stops, **options)
    assert stopped == 2
    assert through == whole


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("how", ["hand", "fit"])
def test_a_signal_stops_at_the_step_and_nothing_is_done_twice(tmp_path, capfd, name, how):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    whole = autosave_run.run(tmp_path / "whole", how=how, every_steps=100)
    with pytest.raises(Stopped) as stop:
        count = iter(range(1, 100))

        def hook() -> None:
            if next(count) == 8:
                os.kill(os.getpid(), number)

        autosave_run.run(tmp_path / "run", how=how, every_steps=100, hook=hook)
    assert stop.value.code == 128 + number
    assert names(tmp_path / "run") == [
        "autosave-epoch-0001-batch-000000.safetensors",
        "autosave-epoch-0001-batch-000002.safetensors",
    ]
    assert f"{name} asked this run to stop. It is saved in {tmp_path / 'run'}" in str(stop.value)
    assert str(stop.value) in capfd.readouterr().err
    assert signal.getsignal(number) is before
    assert autosave_run.run(tmp_path / "run", how=how, every_steps=100) == whole


# --- when it saves, and what stays -------------------------------------------------------------------------


def test_it_saves_every_few_steps_and_at_the_end_of_each_epoch(tmp_path, parts):
    with AutoSave(tmp_path, **parts, every_steps=3, keep=100) as saves:
        train(saves, epochs=2, batches=9)  # the ninth step ends the epoch: one file, not two
    places = [(1, 0), (2, 0), (0, 3), (0, 6), (1, 3), (1, 6)]
    assert names(tmp_path) == [f"autosave-epoch-{e:04}-batch-{b:06}.safetensors" for e, b in sorted(places)]
    assert load_checkpoint(tmp_path / "autosave-epoch-0001-batch-000003.safetensors").step == 3


def test_it_saves_every_few_minutes(tmp_path, parts, monkeypatch):
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 60.0
        return now

    monkeypatch.setattr(autosave.time, "monotonic", clock)
    with AutoSave(tmp_path, **parts, every_minutes=3, keep=100) as saves:
        train(saves, batches=10)
    written = [load_checkpoint(tmp_path / name).step for name in names(tmp_path)]
    assert written == [3, 6, 9, 0] or written == [3, 6, 0, 9], written
    assert AutoSave(tmp_path, **parts).every_minutes == autosave.DEFAULT_MINUTES


def test_the_last_files_stay_and_no_others_go(tmp_path, parts):
    foreign = ["epoch-0000.safetensors", "autosave-epoch-0000-batch-000001.safetensors.bak", "notes.txt"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    damaged = tmp_path / "autosave-epoch-0007-batch-000000.safetensors"
    damaged.write_bytes(b"half a file")
    folder = tmp_path / "autosave-epoch-0000-batch-000000.safetensors"
    folder.mkdir()
    with AutoSave(tmp_path / "other", **parts, every_steps=1, keep=1) as saves:
        train(saves)
    for path in (tmp_path / "other").glob("*.safetensors"):
        path.replace(tmp_path / path.name)
    with pytest.warns(UserWarning, match="passed over"), AutoSave(tmp_path, **parts, keep=2) as saves:
        train(saves, epochs=4)
    own = [
        "autosave-epoch-0003-batch-000000.safetensors",
        "autosave-epoch-0004-batch-000000.safetensors",
        damaged.name,
    ]
    assert names(tmp_path) == sorted([*foreign, *own, folder.name, "other"])


def test_more_epochs_later_go_on_and_a_run_that_is_through_says_so(tmp_path, parts, model, capfd):
    for epochs, expected in ((2, 2), (2, 0), (5, 3), (1, 0)):
        done = []
        with AutoSave(tmp_path, **parts) as saves:
            for epoch in saves.epochs(epochs):
                for (inputs,) in saves.batches([(torch.ones(1, 2),)]):
                    model(inputs)
                    saves.step()
                done.append(epoch)
        assert len(done) == expected
    said = capfd.readouterr().err.splitlines()
    assert said[0].endswith("nothing to do; finished epochs: 2 of 2")
    assert said[1].endswith("going on; finished epochs: 2 of 5")
    assert said[2].endswith("nothing to do; finished epochs: 5 of 1")


def test_a_loop_that_was_left_goes_back_to_what_is_saved(tmp_path, parts):
    with AutoSave(tmp_path, **parts, every_steps=2) as saves:
        for _ in saves.epochs(1):
            for number in saves.batches(range(9)):
                saves.step()
                if number == 4:
                    break
            break
        seen = [list(saves.batches(range(9))) for _ in saves.epochs(1)]
    assert seen == [[4, 5, 6, 7, 8]]


def test_the_state_of_a_run_comes_back(tmp_path, parts, model):
    class Average(dict):  # which its own method fills, and nothing else
        value = 0.0

        def state_dict(self):
            return {"value": self.value, "items": dict(self)}

        def load_state_dict(self, state):
            self.value = state["value"]
            self.update(state["items"])

    average = Average(best=0.5)
    plain = {"losses": [1.0], "best": {"epoch": 1}, "last": 2.0}
    with AutoSave(tmp_path, **parts, extra={"average": average} | plain) as saves:
        average.value = 3.0
        train(saves)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    nn.init.zeros_(model.weight)
    again, losses, best = Average(), [5.0, 6.0], {"step": 0}
    extra = {"average": again, "losses": losses, "best": best, "last": None}
    with AutoSave(tmp_path, **parts, extra=extra) as saves:
        assert list(saves.epochs(1)) == []
        assert (again.value, again, extra["last"]) == (3.0, {"best": 0.5}, 2.0)
        assert extra["losses"] is losses == [1.0] and extra["best"] is best == {"epoch": 1}
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


# --- signals -----------------------------------------------------------------------------------------------


@posix
def test_a_signal_without_a_step_to_stop_at_goes_where_it_went(tmp_path, parts, monkeypatch):
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with AutoSave(tmp_path, **parts):
            os.kill(os.getpid(), signal.SIGTERM)
            assert came == [signal.SIGTERM]
        with AutoSave(tmp_path, **parts) as saves:
            for _ in saves.epochs(2):
                os.kill(os.getpid(), signal.SIGTERM)
                assert len(came) == 1  # held back
                break
            assert len(came) == 1
            os.kill(os.getpid(), signal.SIGTERM)
            assert len(came) == 2  # after the loop it is not
        assert len(came) == 3
    finally:
        signal.signal(signal.SIGTERM, before)


@posix
def test_a_signal_before_the_loop_leaves_the_others_for_the_loop(tmp_path, parts, monkeypatch):
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped), AutoSave(tmp_path, **parts) as saves:
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in saves.epochs(1):
                assert signal.getsignal(signal.SIGTERM) == saves._signals._on_signal
                for number in saves.batches([signal.SIGUSR1, signal.SIGTERM]):
                    os.kill(os.getpid(), number)
                    saves.step()
    finally:
        signal.signal(signal.SIGUSR1, before)


@posix
@pytest.mark.parametrize("where", ["loop", "save"])
def test_a_signal_is_not_lost_with_an_error(tmp_path, parts, monkeypatch, capfd, where):
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))

    def fail(*content):
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError("division by zero")

    if where == "save":
        monkeypatch.setattr(saving, "write_checkpoint", fail)
    try:
        with (
            pytest.raises(ZeroDivisionError),
            AutoSave(tmp_path, **parts, every_steps=1) as saves,
        ):
            for _ in saves.epochs(1):
                for number in saves.batches([1, 0]):
                    saves.step()
                    os.kill(os.getpid(), signal.SIGTERM)
                    1 / (number - 1)
        assert came == [signal.SIGTERM]
        assert "ZeroDivisionError: " in capfd.readouterr().err
    finally:
        signal.signal(signal.SIGTERM, before)


@posix
def test_a_worker_that_ends_while_its_signal_is_taken_stops_nothing(tmp_path, parts, monkeypatch):
    def of_torch(number, frame):
        raise RuntimeError("DataLoader worker is killed by signal: Terminated.")

    def ended(name):
        really = getattr(signal, name)
        once = iter([signal.SIGCHLD])

        def call(*given):
            for number in once:
                os.kill(os.getpid(), number)
            return really(*given)

        return call

    before = signal.signal(signal.SIGCHLD, of_torch)
    try:
        with AutoSave(tmp_path, **parts) as saves:
            for name in "getsignal", "signal":
                monkeypatch.setattr(signal, name, ended(name))
            saves._signals.hold_child_signal()
            monkeypatch.undo()
            assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGCHLD) is of_torch
    finally:
        signal.signal(signal.SIGCHLD, before)


@posix
def test_a_signal_while_the_handlers_are_put_back_leaves_none_behind(tmp_path, parts, monkeypatch):
    came, really = [], signal.signal
    both = {signal.SIGTERM, signal.SIGUSR1}
    before = {number: really(number, lambda number, frame: came.append(number)) for number in both}
    child = signal.getsignal(signal.SIGCHLD)

    def put_back(number, handler):
        old = really(number, handler)
        if others := both - {number}:
            both.clear()
            os.kill(os.getpid(), *others)
        return old

    saves = AutoSave(tmp_path, **parts)
    try:
        with pytest.raises(KeyError), saves:
            epochs = saves.epochs(1)  # a name that keeps the loop open while the error is on its way
            for _ in epochs:
                monkeypatch.setattr(autosave.signal, "signal", put_back)
                raise KeyError
    finally:
        monkeypatch.undo()
        after = {number: signal.getsignal(number) for number in (*before, signal.SIGCHLD)}
        for number, handler in (before | {signal.SIGCHLD: child}).items():
            really(number, handler)
    assert len(came) == 1 and saves._lock is None
    assert after[signal.SIGCHLD] == signal.SIG_DFL and saves._signals._on_signal not in after.values()


@posix
def test_a_signal_waits_for_the_step_that_several_batches_make(tmp_path, parts):
    with pytest.raises(Stopped), AutoSave(tmp_path, **parts, every_steps=100) as saves:
        for _ in saves.epochs(1):
            for number, _ in enumerate(saves.batches(range(12)), start=1):
                if number == 6:
                    os.kill(os.getpid(), signal.SIGTERM)
                if number % 4 == 0:
                    saves.step()
    assert names(tmp_path) == ["autosave-epoch-0000-batch-000008.safetensors"]


@posix
@pytest.mark.parametrize(("batches", "saved"), [(4, 4), (5, 2)], ids=["after a step", "between two steps"])
def test_a_signal_that_ends_the_workers_while_a_batch_is_waited_for(tmp_path, parts, batches, saved):
    def loader():
        yield from range(batches)
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("DataLoader worker is killed by signal: Terminated")

    with pytest.raises(Stopped, match="SIGTERM"), AutoSave(tmp_path, **parts, every_steps=100) as saves:
        for _ in saves.epochs(1):
            for number, _ in enumerate(saves.batches(loader()), start=1):
                if number == 2:
                    saves._save()
                if number % 2 == 0:
                    saves.step()
    assert names(tmp_path)[-1] == f"autosave-epoch-0000-batch-{saved:06}.safetensors"


@posix
def test_a_signal_that_ends_the_workers_before_it_comes_here(tmp_path, parts):
    class Loader:
        num_workers = 1

        def __iter__(self):
            signal.signal(signal.SIGCHLD, fail)  # as torch does
            return self.batches()

        def batches(self):
            yield 1
            late.start()
            raise ConnectionResetError

    def fail(number, frame):
        raise RuntimeError("DataLoader worker is killed by signal: Terminated")

    late = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGCHLD), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped), AutoSave(tmp_path, **parts, every_steps=100) as saves:
            for _ in saves.epochs(1):
                for _ in saves.batches(Loader()):
                    os.kill(os.getpid(), signal.SIGCHLD)  # in the middle of a step
                    saves.step()
        os.kill(os.getpid(), signal.SIGCHLD)  # another worker, after the loop
    finally:
        late.join()
        for number, handler in zip((signal.SIGCHLD, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert names(tmp_path) == ["autosave-epoch-0000-batch-000001.safetensors"]


@posix
def test_a_worker_that_starts_after_the_signal_may_end_at_any_time(tmp_path, parts):
    class Loader:
        num_workers = 1

        def __iter__(self):
            signal.signal(signal.SIGCHLD, lambda number, frame: came.append(number))  # torch's raises
            return iter([1])

    came, before = [], signal.getsignal(signal.SIGCHLD)
    try:
        with pytest.raises(Stopped), AutoSave(tmp_path, **parts) as saves:
            for _ in saves.epochs(1):
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in saves.batches(Loader()):
                    os.kill(os.getpid(), signal.SIGCHLD)
                    saves.step()
        os.kill(os.getpid(), signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not came


@posix
def test_a_signal_after_the_last_step_stops_at_the_epochs_end(tmp_path, parts):
    with pytest.raises(Stopped), AutoSave(tmp_path, **parts) as saves:
        for _ in saves.epochs(2):
            for _ in saves.batches([1]):
                saves.step()
            os.kill(os.getpid(), signal.SIGTERM)
    assert names(tmp_path) == ["autosave-epoch-0001-batch-000000.safetensors"]


def test_ctrl_c_is_as_ever(tmp_path, parts):
    before = signal.getsignal(signal.SIGINT)
    with AutoSave(tmp_path, **parts):
        assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_than_the_main_one_may_save(tmp_path, parts):
    def work() -> None:
        with AutoSave(tmp_path, **parts) as saves:
            train(saves)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert names(tmp_path) == ["autosave-epoch-0001-batch-000000.safetensors"]
    assert signal.getsignal(signal.SIGTERM) is before


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep=0: give how many checkpoints stay, 1 or more"),
        ({"keep": True}, "keep=True is of the type bool, not a whole number: give how many"),
        ({"every_steps": numpy.uint8(0)}, "every_steps=0: give a number of steps, 1 or more"),
        ({"every_steps": 2.5}, "every_steps=2.5 is of .*: give a number of steps"),
        ({"every_minutes": 0}, "every_minutes=0: give a number of minutes, more than 0"),
        ({"every_minutes": float("nan")}, "every_minutes=nan: give"),
        ({"extra": [1]}, "extra is a list of 1 .*, but must be a dict with names: give"),
        (
            {"extra": {"scaler": torch.amp.GradScaler}},
            r"extra\['scaler'\] is the class GradScaler, but must be an object of the run: make",
        ),
        ({"folder": None}, "folder is None, but must be the name of a folder: give each run its own"),
        ({"optimizer": torch.optim.SGD}, r"the optimizer is .*: give an object that has state_dict\(\)"),
    ],
)
def test_options_that_make_no_sense(tmp_path, parts, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        AutoSave(**{"folder": tmp_path} | parts | options)


def test_calls_at_the_wrong_place(tmp_path, parts):
    saves = AutoSave(tmp_path, **parts)
    with pytest.raises(RuntimeError, match="write `with AutoSave"):
        saves.epochs(1)
    with saves:
        with pytest.raises(RuntimeError, match=r"belongs inside `for epoch in saves.epochs"):
            next(saves.batches([1]))
        with pytest.raises(RuntimeError, match=r"belongs inside `for … in saves.batches"):
            saves.step()
        with pytest.raises(TypeError, match=r"epochs=2.5 is .*: give the number of epochs"):
            saves.epochs(2.5)
        with pytest.raises(RuntimeError, match="entered already"):
            saves.__enter__()
        for _ in saves.epochs(1):
            list(saves.batches([1]))
            with pytest.raises(RuntimeError, match="once in an epoch"):
                next(saves.batches([1]))


def test_folders_that_cannot_be_used(tmp_path, parts, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/within", "a\0b"):
        with pytest.raises(CheckpointError, match=r"Checkpoints cannot go into .*Give a folder"):
            AutoSave(tmp_path / folder, **parts).__enter__()
    monkeypatch.setattr(autosave, "_PATIENCE", 0.1)
    taken = pytest.raises(CheckpointError, match=r"Another run saves into .*Give each run its own folder")
    with AutoSave(tmp_path / "run", **parts), taken:
        AutoSave(tmp_path / "run", **parts).__enter__()
    with AutoSave(tmp_path / "run", **parts):
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loader: Batches(*loader.tensors, batch_size=3), "'batch_size': 2.*'batch_size': 3"),
        (lambda loader: Batches(loader.tensors[0][:6], batch_size=2), "'length': 4.*'length': 3"),
        (
            lambda loader: Batches(*loader.tensors, batch_size=2, shuffle=True, generator=torch.Generator()),
            "'generators': 0.*'generators': 1",
        ),
    ],
)
def test_another_loader_within_the_epoch(tmp_path, parts, change, message):
    loader = Batches(torch.ones(8, 2), batch_size=2)
    folder = tmp_path / "red\u202e"  # a name that would change what is printed after it
    for given in (loader, change(loader)):
        with AutoSave(folder, **parts, every_steps=1) as saves:
            for _ in saves.epochs(1):
                if given is not loader:
                    with pytest.raises(
                        CheckpointError, match=f"saved with another loader.*{message}"
                    ) as error:
                        next(saves.batches(given))
                    assert "red\\u202e" in str(error.value)
                    break
                for number, _ in enumerate(saves.batches(given)):
                    saves.step()
                    if number == 1:
                        break
                break


@pytest.mark.parametrize(
    ("shorter", "message"),
    [
        (False, "saved with another loader.*nothing was loaded"),
        (True, "after 3 batches of an epoch, and this loader has fewer; nothing was loaded"),
    ],
)
def test_another_loader_changes_nothing(tmp_path, parts, shorter, message):
    """It is known only when the batches are asked for, after the run was loaded."""
    extra = {"losses": [], "scaler": torch.amp.GradScaler("cpu"), "best": 0.5}
    loader = Batches(torch.ones(8, 2), batch_size=2)
    with AutoSave(tmp_path, **parts, extra=extra, every_steps=1) as saves:
        for _ in saves.epochs(1):
            for number, (inputs,) in enumerate(saves.batches(iter(loader) if shorter else loader)):
                parts["model"](inputs).sum().backward()
                parts["optimizer"].step()
                extra["losses"].append(number)
                extra["best"] = number
                saves.step()
                if number == 2:
                    break
            break
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    losses: list[int] = [7]
    new = {"losses": losses, "scaler": torch.amp.GradScaler("cpu", init_scale=4.0), "best": 0.25}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    loader = iter([1]) if shorter else Batches(torch.ones(8, 2), batch_size=4)
    with AutoSave(tmp_path, model=model, optimizer=optimizer, extra=new) as saves:
        for _ in saves.epochs(1):
            assert losses == [0, 1, 2] and optimizer.state and new["best"] == 2
            with pytest.raises(CheckpointError, match=message):
                next(saves.batches(loader))
            break
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert not optimizer.state and optimizer.param_groups[0]["lr"] == 0.3
    assert new["losses"] is losses and losses == [7] and new["best"] == 0.25
    assert new["scaler"].state_dict()["scale"] == 4.0 and torch.equal(torch.get_rng_state(), draws)


@pytest.mark.parametrize("name", ["persistent_workers", "in_order"])
def test_loaders_that_no_checkpoint_brings_back(tmp_path, parts, name):
    batches, run = autosave_run.make_run(workers=1, **{name: name != "in_order"})
    with AutoSave(tmp_path, **run) as saves:
        with pytest.raises(ValueError, match=f"the loader has {name}="):
            fit(run["model"], batches, autosave_run.loss_fn, run["optimizer"], "cpu", 1,
                scheduler=run["scheduler"], autosave=saves)  # fmt: skip
        for _ in saves.epochs(1):
            with pytest.raises(ValueError, match=f"the loader has {name}="):
                next(saves.batches(batches))


def test_files_that_do_not_fit(tmp_path, parts, model):
    with AutoSave(tmp_path, **parts) as saves:
        train(saves)
    other = nn.Linear(3, 1)
    given = {"model": other, "optimizer": torch.optim.SGD(other.parameters(), momentum=0.5)}
    with AutoSave(tmp_path, **given) as saves, pytest.raises(CheckpointError, match="does not fit"):
        saves.epochs(1)
    given = AutoSave(tmp_path, **parts, generator=torch.Generator())
    message = "generator: None in the file, a generator of the cpu given"
    with given as saves, pytest.raises(CheckpointError, match=message):
        saves.epochs(2)
    weights = model.weight.clone()
    nn.init.zeros_(model.weight)
    message = r"names \[\], and given are \['losses'\]"
    other_extra = AutoSave(tmp_path, **parts, extra={"losses": []})
    with other_extra as saves, pytest.raises(CheckpointError, match=message):
        saves.epochs(1)
    assert not model.weight.any() and weights.any()
    save_checkpoint(tmp_path / "autosave-epoch-0009-batch-000000.safetensors", epoch=9, **parts)
    with AutoSave(tmp_path, **parts) as saves, pytest.raises(CheckpointError, match="move it away"):
        saves.epochs(10)


def test_nothing_is_loaded_if_a_part_of_extra_or_of_the_run_does_not_fit(tmp_path, parts, model):
    with AutoSave(tmp_path, **parts, extra={"first": nn.Linear(2, 2), "last": nn.Linear(2, 2)}) as saves:
        train(saves)
    other = nn.Linear(3, 1)
    for wide, given in (
        (2, {"model": other, "optimizer": torch.optim.SGD(other.parameters(), momentum=0.5)}),
        (5, parts),
    ):
        extra = {"first": nn.Linear(2, 2), "last": nn.Linear(wide, 2)}
        held = [given["model"], *extra.values()]
        before = [part.weight.detach().clone() for part in held]
        random = torch.get_rng_state()
        wrong = "extra 'last' was not loaded" if given is parts else "1, 2.*1, 3"
        with (
            AutoSave(tmp_path, **given, extra=extra) as saves,
            pytest.raises(CheckpointError, match=f"(?s)does not fit; nothing was loaded:.*{wrong}"),
        ):
            saves.epochs(2)
        assert all(torch.equal(part.weight, was) for part, was in zip(held, before, strict=True))
        assert torch.equal(torch.get_rng_state(), random)


BEGUN = {"rng": {}, "generator": None, "generators": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "1"}, "move it away"),
        ({"loader": {"length": [2], "batch_size": None}}, "move it away"),
        ({"loader": {}}, "move it away"),
        ({"generators": [torch.zeros(3)]}, "move it away"),
        ({"generators": [torch.zeros(3, dtype=torch.uint8)]}, "move it away"),  # and none when it began
        ({"begun": None}, "move it away"),
        ({"begun": BEGUN | {"rng": []}}, "move it away"),
        ({"begun": BEGUN | {"rng": {5: 1, "cpu": 2, "python": 3}}}, r"nothing was loaded\. TypeError"),
        ({"begun": BEGUN}, "loaded: rng lacks cpu and python"),
        ({"fit": [1]}, "move it away"),
        ({"fit": {"history": 1}}, "nothing was loaded: it was saved by fit"),
    ],
)
def test_a_position_that_is_malformed(tmp_path, parts, model, change, message):
    with AutoSave(tmp_path, **parts, every_steps=1) as saves:
        for _ in saves.epochs(1):
            for _ in saves.batches([1, 2]):
                saves.step()
                break
            break
    position = load_checkpoint(saves.path).position
    save_checkpoint(saves.path, epoch=0, step=1, position=position | change, extra={}, **parts)
    nn.init.zeros_(model.weight)
    with AutoSave(tmp_path, **parts) as saves, pytest.raises(CheckpointError, match=message):
        saves.epochs(1)
    assert not model.weight.any()


def test_random_states_are_stored_once(tmp_path, parts):
    with AutoSave(tmp_path, **parts, generator=torch.Generator()) as saves:
        train(saves)
    with safetensors.safe_open(saves.path, "pt") as file:
        states = [name for name in file.keys() if file.get_slice(name).get_shape() == [5056]]  # noqa: SIM118
    assert sorted(states) == ["generator", "rng.cpu"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"losses": {"total": "x", "samples": 1, "batches": 1}}, "losses total is a str, not a number"),
        ({"losses": {}}, "losses lacks total"),
        ({"history": {}}, "it is not a history of fit"),
        ({"history": 3}, "it is not a history of fit"),
        ({"scaler": {}}, "fit's scaler lacks scale"),
    ],
)
def test_what_fit_measured_is_malformed(tmp_path, parts, model, change, message):
    run = model, [(torch.ones(1, 2), torch.ones(1, 1))], nn.MSELoss(), parts["optimizer"], "cpu", 2
    step = Step(parts["optimizer"], amp="fp16")
    with AutoSave(tmp_path, **parts) as saves:
        fit(*run, autosave=saves, step=step)
    found = load_checkpoint(saves.path)
    found.position["fit"] |= change
    save_checkpoint(saves.path, epoch=2, position=found.position, extra={}, **parts)
    weight = model.weight.clone()
    with AutoSave(tmp_path, **parts) as saves, pytest.raises(CheckpointError, match=message):
        fit(*run, autosave=saves, step=step)
    assert torch.equal(model.weight, weight)


@posix
def test_nothing_is_written_through_a_link(tmp_path, parts):
    mine, folder = tmp_path / "mine", tmp_path / "run"
    mine.write_text("precious")
    link, lock = folder / "autosave-epoch-0001-batch-000000.safetensors", folder / ".autosave.lock"
    with AutoSave(folder, **parts) as saves:
        for _ in saves.epochs(1):
            link.symlink_to(mine)
    assert mine.read_text() == "precious" and load_checkpoint(saves.path).epoch == 1
    lock.unlink(missing_ok=True)
    lock.symlink_to(mine)
    with pytest.raises(CheckpointError, match="Checkpoints cannot go into"), AutoSave(folder, **parts):
        pass
    assert mine.read_text() == "precious"


@posix
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_process_forked_in_the_loop_still_ends_on_a_signal(tmp_path, parts):
    with AutoSave(tmp_path, **parts) as saves:
        for _ in saves.epochs(1):
            ready, tell = os.pipe()
            if not (child := os.fork()):
                os.write(tell, b"!")
                time.sleep(60)
                os._exit(1)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            assert os.waitpid(child, 0)[1] == signal.SIGTERM


def test_the_losses_of_an_epoch_of_many_batches_take_little_room():
    """What `fit` keeps of them does not grow, and their mean does not depend on when it was saved."""
    losses, again = EpochLoss(nn.MSELoss()), EpochLoss(nn.MSELoss())
    for number in range(1000):
        losses.add(torch.tensor(0.1), 2)
        again.add(torch.tensor(0.1), 2)
        if number == 300:
            state = again.state_dict()
            again = EpochLoss(nn.MSELoss())
            again.load_state_dict(state)
    assert all(isinstance(each, int | float) for each in losses.state_dict().values())
    assert (len(again), again.mean()) == (1000, losses.mean())


def test_fit_and_an_autosave_that_does_not_fit(tmp_path, parts, model):
    loader = [(torch.ones(1, 2), torch.ones(1, 1))]
    run = model, loader, nn.MSELoss(), parts["optimizer"], "cpu", 2
    with AutoSave(tmp_path, **parts) as saves:
        with pytest.raises(ValueError, match=r"epochs is range\(1, 2\) with autosave.*of the whole run"):
            fit(*run[:-1], range(1, 2), autosave=saves)
        other = torch.optim.SGD(model.parameters())
        with pytest.raises(ValueError, match="another optimizer than fit was given"):
            fit(*run[:3], other, "cpu", 2, autosave=saves)
        fit(*run, autosave=saves)
    with pytest.raises(TypeError, match=r"autosave is a \w+Path: give an AutoSave"):
        fit(*run, autosave=tmp_path)
    with AutoSave(tmp_path, **parts) as saves, pytest.raises(CheckpointError, match="fit with another amp"):
        fit(*run, autosave=saves, step=Step(parts["optimizer"], amp="fp16"))


def test_fit_saves_no_run_whose_loss_is_not_finite(tmp_path, parts, model):
    bad = torch.full((1, 2), float("nan"))
    loader = [(torch.ones(1, 2), torch.ones(1, 1))] * 2 + [(bad, torch.ones(1, 1))] * 4
    with AutoSave(tmp_path, **parts, every_steps=2) as saves, pytest.raises(NonFiniteLossError) as error:
        fit(model, loader, nn.MSELoss(), parts["optimizer"], "cpu", 2, autosave=saves)
    assert (error.value.epoch, error.value.step) == (1, 3)
    assert names(tmp_path) == ["autosave-epoch-0000-batch-000002.safetensors"]
