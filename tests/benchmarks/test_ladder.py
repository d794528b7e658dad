"""The rungs: those that claim the same work have the same losses, and one that has not is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from gpulesson.data import Images
from ladder import FIT, RUNGS, Training, check, fastest

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images() -> Images:
    torch.manual_seed(0)
    pictures = torch.randint(256, (200, 28, 28), dtype=torch.uint8)
    targets = pictures[:, :5].float().mean((1, 2)).argsort().argsort() // 20  # something to learn
    return Images(pictures, targets, pictures, targets, tuple("0123456789"), "noise")


@pytest.fixture(scope="module")
def trained(images) -> list[tuple[Training, float]]:
    """Every rung that needs no files and no compiler, after an epoch whose last batch is short."""
    rungs = [r for r in RUNGS if r.batches not in ("naive", "workers") and not r.compiled]
    found = []
    for rung in rungs:
        training = Training(rung, images, CPU)
        if "capturable" in rung.adam:
            continue  # on a GPU only; the loop itself is tested in test_capture.py
        training.restart(seed=0)
        found.append((training, training.epoch(seed=0)[1]))
    return found


def test_the_same_work_has_the_same_loss(trained):
    losses = {training.rung.name: loss for training, loss in trained if training.rung.same}
    assert len(losses) >= 6
    first = next(iter(losses.values()))
    assert losses == pytest.approx(dict.fromkeys(losses, first), rel=1e-5)
    others = [loss for training, loss in trained if training.rung.batch_size > 64]
    assert others and not any(loss == pytest.approx(first, rel=1e-3) for loss in others)


def test_another_loss_is_refused(trained):
    same = [(training, loss) for training, loss in trained if training.rung.same]
    trainings, losses = [t for t, _ in same], [loss for _, loss in same]
    check(trainings, losses)
    with pytest.raises(SystemExit, match=f"{trainings[-1].rung.name}: loss"):
        check(trainings, [*losses[:-1], losses[-1] * 1.01])


def test_no_rung_leaves_its_precision_behind(trained):
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_graph_rung_has_the_same_loss_without_graphs(images):
    rung = next(r for r in RUNGS if r.loop == "graph")
    runs = [replace(rung, adam={"fused": True}), next(r for r in RUNGS if r.name == "the same, by fit")]
    losses = []
    for one in runs:
        training = Training(one, images, CPU)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training.restart(seed=0)
        losses.append(training.epoch(seed=0)[1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_fastest_row_is_one_of_fit_with_the_naive_scripts_network():
    rows = [
        {"rung": "fused Adam", "median": 9.0},  # by hand
        {"rung": FIT, "median": 4.0},
        {"rung": "batch 1024, 6e-3, bf16", "median": 8.0},
        {"rung": "the same, bfloat16", "median": 20.0},  # a CNN
    ]
    assert fastest(rows)["rung"] == "batch 1024, 6e-3, bf16"
