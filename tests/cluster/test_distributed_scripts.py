"""The training scripts of ``examples/distributed``: on several ranks, stopped, killed and started again.

A training that is to be stopped has more epochs than it can reach, so that no test depends on how fast the
machine is. Its checkpoint tells how far it came. It is started again for one more epoch, and must end with
the weights of a training of as many epochs that nobody stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gpulesson.data import excerpt_folder

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "examples" / "distributed"
BOTH = pytest.mark.parametrize(
    "script", ["train_ddp.py", pytest.param("train_fsdp.py", marks=pytest.mark.thorough)]
)
DDP = pytest.mark.parametrize("script", ["train_ddp.py"])  # what is the same in both
LIMIT = 300  # seconds: an end to what hangs
STOPPED = 75


class Training:
    """A script in a folder of its own."""

    def __init__(self, script: str, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output.txt"
        folder.mkdir(exist_ok=True)
        self.script = [str(SCRIPTS / script), "--data", str(excerpt_folder()), "--folder", str(folder)]
        self.script += ["--samples", "510", "--batch-size", "60"]  # 9 steps; the last has 30 images

    def start(
        self, ranks: int | None, epochs: int, *options: str, workers: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start it with torchrun, or alone if the number of ranks is None."""
        launch = [sys.executable]
        if ranks is not None:
            launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
        training = ["--epochs", str(epochs), "--workers", str(workers)]
        with self.output.open("wb") as output:
            return subprocess.Popen([*launch, *self.script, *training], stdout=output, stderr=output)

    def run(self, ranks: int | None, epochs: int) -> dict[str, torch.Tensor]:
        """Train to the end and return the weights."""
        process = self.start(ranks, epochs)
        assert process.wait(LIMIT) == 0, self.text()
        return torch.load(self.folder / "model.pt")

    def text(self) -> str:
        return self.output.read_text("utf-8")

    def checkpoints(self) -> list[Path]:
        return [*self.folder.glob("checkpoint.pt"), *self.folder.glob("step-*")]

    def wait_until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < end, f"waited {LIMIT} s; it wrote: {self.text()}"
            time.sleep(0.02)

    def epochs_done(self) -> int:
        if (file := self.folder / "checkpoint.pt").exists():
            return torch.load(file)["epoch"]
        (folder,) = self.folder.glob("step-*")
        return int(folder.name.split("-")[1])

    def steps_done(self) -> int:
        """Return how many steps of an epoch that is not finished are done."""
        if (file := self.folder / "checkpoint.pt").exists():
            return torch.load(file)["steps"]
        (folder,) = self.folder.glob("step-*")
        return int(folder.name.split("-")[2])

    def ranks(self) -> dict[int, int]:
        """Return the processes that train, by their rank, and by 0 where there is no torchrun."""
        found = {}
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, StopIteration):  # no process, or one that has ended
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if str(self.folder).encode() in command and b"torch.distributed.run" not in command:
                    variables = (folder / "environ").read_bytes().split(b"\0")
                    rank = next((one for one in variables if one.startswith(b"RANK=")), b"RANK=0")
                    found[int(rank.removeprefix(b"RANK="))] = int(folder.name)
        return found


@pytest.fixture
def training(script: str, tmp_path: Path) -> Iterator[Training]:
    if not Path("/proc/self/environ").exists():
        pytest.skip("the ranks are found in /proc, which Linux has")
    training = Training(script, tmp_path / "run")
    yield training
    for process in training.ranks().values():  # of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, int], dict[str, torch.Tensor]]:
    """A function that returns the weights after so many epochs by two ranks that nobody stopped."""
    known: dict[tuple[str, int], dict[str, torch.Tensor]] = {}

    def weights(script: str, epochs: int) -> dict[str, torch.Tensor]:
        if (script, epochs) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[script, epochs] = Training(script, folder).run(2, epochs)
        return known[script, epochs]

    return weights


def differences(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between two models' weights."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).abs().max()) for name in found)


def changed(training: Training, folder: Path, script: str, change: Callable[[str], str]) -> None:
    """Let a training run a copy of its script, with changes."""
    copy = folder / script
    copy.write_text(change((SCRIPTS / script).read_text("utf-8")), "utf-8")
    training.script[0] = str(copy)


def slow_steps(text: str) -> str:
    """Let an epoch take three seconds and more: what comes after its first line comes within the second."""
    here = '            state["steps"] += 1\n'
    assert text.count(here) == 1
    return text.replace(here, f"            time.sleep(0.4)\n{here}")


@BOTH
def test_one_process_and_several_ranks_learn_the_same(script, training, undisturbed) -> None:
    alone = training.run(None, 2)
    loss, accuracy = re.findall(r"Epoch \[2/2\], loss (\S+), test accuracy (\S+)%", training.text())[0]
    assert float(loss) < 2.3 and float(accuracy) > 20  # guessing has ln 10 and 10 %
    assert differences(alone, undisturbed(script, 2)) < 1e-4


@pytest.mark.thorough
@BOTH
def test_a_signal_to_one_rank_stops_all_and_nothing_is_lost(script, training, undisturbed, tmp_path) -> None:
    changed(training, tmp_path, script, slow_steps)
    process = training.start(2, 1000)
    training.wait_until(lambda: "Epoch [1/" in training.text())
    os.kill(training.ranks()[1], signal.SIGTERM)
    assert process.wait(LIMIT) == 1  # torchrun has a status of its own, and names that of the ranks
    assert f"exitcode  : {STOPPED}" in training.text()
    assert not training.ranks()
    assert training.steps_done() > 0  # saved within an epoch
    training.script[0] = str(SCRIPTS / script)
    epochs = training.epochs_done() + 1
    resumed = training.run(2, epochs)
    assert training.text().startswith("going on from")
    assert differences(resumed, undisturbed(script, epochs)) == 0


@pytest.mark.thorough
@BOTH
def test_a_signal_during_the_evaluation_ends_it_and_the_epoch_is_saved(
    script, training, undisturbed, tmp_path
) -> None:
    def slow_evaluation(text: str) -> str:
        here = r"^( +)(?=if .*  # the epoch is saved$)"
        text, count = re.subn(here, r"\1time.sleep(0.1)\n\1", text, flags=re.M)
        assert count == text.count("batch_size=1000") == 1
        return text.replace("batch_size=1000", "batch_size=1").replace("split(1000)", "split(1)")

    changed(training, tmp_path, script, slow_evaluation)
    process = training.start(2, 1000)
    training.wait_until(training.checkpoints)
    process.terminate()
    assert process.wait(LIMIT) != 0
    assert "Epoch [1/" not in training.text() and training.epochs_done() == 1
    assert training.steps_done() == 0
    training.script[0] = str(SCRIPTS / script)
    assert differences(training.run(2, 2), undisturbed(script, 2)) == 0


# what docs/cluster.rst says to put into train_ddp.py: where, and the line
BEFORE = (
    ('    parts = {"model"', "    ", "scaler = torch.amp.GradScaler(device.type)"),
    ("        model.train()", "        ", 'torch.manual_seed(state["epoch"] * world_size + rank)'),
    ("            loss = ", "            ", "with torch.autocast(device.type, torch.bfloat16):"),
    ("            optimizer.step()", "            ", "scaler.unscale_(optimizer)"),
    ("            optimizer.step()", "            ", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
)
INSTEAD = (
    ('"scheduler": scheduler}', '"scheduler": scheduler, ', '"scaler": scaler', "}"),
    ("loss = nn", "    loss = nn", "", ""),
    ("loss.backward()", "", "scaler.scale(loss).backward()", ""),
    ("optimizer.step()", "", "scaler.step(optimizer)", "; scaler.update()"),
    ('"steps": 0, "loss"', '"steps": 0, ', '"best": 0.0', ', "loss"'),
    (
        "device)\n        if rank",
        "device)\n        ",
        'state["best"] = max(state["best"], right)',
        "; checkpoint()\n        if rank",
    ),
)


@pytest.mark.thorough
@DDP
def test_the_lines_that_the_page_names_are_saved_and_go_on(script, training, tmp_path) -> None:
    page = (SCRIPTS.parents[1] / "docs" / "cluster.rst").read_text("utf-8")

    def with_lines(text: str) -> str:
        for place, indent, line in BEFORE:
            assert text.count(place) == 1 and f"``{line}``" in page, line
            text = text.replace(place, f"{indent}{line}\n{place}")
        for place, before, line, after in INSTEAD:
            assert text.count(place) == 1 and (not line or f"``{line}``" in page), line
            text = text.replace(place, f"{before}{line}{after}")
        return text

    changed(training, tmp_path, script, with_lines)
    process = training.start(2, 1000)
    training.wait_until(lambda: "Epoch [1/" in training.text())
    process.terminate()
    assert process.wait(LIMIT) != 0
    saved = torch.load(training.folder / "checkpoint.pt")
    assert saved["best"] > 0.1 and saved["scaler"]["_growth_tracker"] > 0
    epochs = saved["epoch"] + 1
    resumed = training.run(2, epochs)
    whole = Training(script, tmp_path / "whole")
    whole.script[0] = training.script[0]
    assert differences(resumed, whole.run(2, epochs)) == 0


@pytest.mark.thorough
@BOTH
def test_it_goes_on_with_another_number_of_ranks(script, training, undisturbed) -> None:
    process = training.start(None, 1000)
    training.wait_until(training.checkpoints)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(LIMIT) == STOPPED
    epochs = training.epochs_done() + 1
    resumed = training.run(3, epochs)
    assert training.text().startswith("going on from")
    assert differences(resumed, undisturbed(script, epochs)) < 1e-4


@pytest.mark.thorough
@DDP
def test_torchrun_restarts_after_a_rank_was_killed(script, training, undisturbed) -> None:
    process = training.start(2, 1000, "--max-restarts=1")
    training.wait_until(training.checkpoints)
    os.kill(training.ranks()[1], signal.SIGKILL)
    training.wait_until(lambda: "going on from" in training.text())
    process.terminate()  # torchrun hands it to its ranks, and waits for them
    assert process.wait(LIMIT) != 0
    epochs = training.epochs_done() + 1
    assert differences(training.run(2, epochs), undisturbed(script, epochs)) == 0


@pytest.mark.thorough
@DDP
def test_no_rank_outlives_a_launcher_that_was_killed(script, training) -> None:
    process = training.start(2, 1000)
    training.wait_until(training.checkpoints)
    assert len(training.ranks()) == 2
    process.kill()
    process.wait(LIMIT)
    training.wait_until(lambda: not training.ranks())
    assert training.epochs_done() < 1000


@pytest.mark.thorough
@DDP
def test_processes_that_load_images_survive_the_signal_to_their_group(script, training, tmp_path) -> None:
    changed(training, tmp_path, script, slow_steps)
    process = training.start(2, 1000, workers=1)
    training.wait_until(lambda: "Epoch [1/" in training.text())
    process.terminate()
    process.wait(LIMIT)
    assert "DataLoader worker" not in training.text()
    assert training.steps_done() > 0  # saved within an epoch


@pytest.mark.thorough
@DDP
def test_it_ends_after_an_error_though_processes_load_images(script, training) -> None:
    process = training.start(None, 1000, workers=1)
    training.wait_until(training.checkpoints)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) != 0
    assert "KeyboardInterrupt" in training.text()
    training.wait_until(lambda: not training.ranks())


@pytest.mark.thorough
@DDP
def test_a_batch_that_cannot_be_shared_is_refused(script, training) -> None:
    training.script += ["--batch-size", "61"]
    process = training.start(2, 1)
    assert process.wait(LIMIT) == 1
    assert "--batch-size 61 is no multiple of 2 ranks" in training.text()
