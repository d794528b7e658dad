"""The peak of a training is measured as it is."""

from __future__ import annotations

import torch

from memory import CASES, MiB, peak, sgd, train
from practice_gpu import practice_gpu


def test_the_peak_is_that_of_one_run():
    kept = []

    def case() -> None:
        kept.append(torch.zeros(MiB // 4, device="cuda"))  # stays: a MiB that the second run finds
        torch.zeros(3 * MiB // 4, device="cuda")

    with practice_gpu(force=True):
        found = peak(case)
    assert (found["peak"], found["left"], len(kept)) == (4.0, 1.0, 2)


def test_a_training_needs_its_weights_gradients_and_batch():
    with practice_gpu(force=True):
        found = peak(lambda: train(torch.nn.Linear(784, 10), sgd, 8))["peak"] * MiB
    weights, batch = 784 * 10 * 4, 8 * 784 * 4
    assert weights + batch < found < 3 * weights + 3 * batch
    assert len(CASES) >= 5
