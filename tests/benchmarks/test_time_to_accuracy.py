"""Whole runs to an accuracy: what is folded computes the same, rates are chosen on held-out images alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import time_to_accuracy
from gpulesson.models import MLP
from time_to_accuracy import PREPARE, WAYS, accuracy, cross_entropy, interval, sums_of_blocks, train, tuned

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def split():
    torch.manual_seed(0)
    images = torch.randint(256, (300, 28, 28), dtype=torch.uint8)
    labels = images[:, :5].float().mean((1, 2)).argsort().argsort() // 30  # something to learn
    return images, labels, images, labels


@pytest.mark.parametrize("prepare", PREPARE)
def test_a_folded_network_gives_the_same_logits_on_pixels(split, prepare):
    images = split[0]
    inputs, fold = PREPARE[prepare](images)
    torch.manual_seed(1)
    model = MLP(inputs.shape[1], 128, 64, 10)
    expected = model(inputs)
    folded = fold(model)
    assert next(folded.parameters()).shape == (128, 784)
    torch.testing.assert_close(folded(images.float() / 255), expected, rtol=1e-3, atol=1e-3)


def test_sums_of_blocks_are_those_of_average_pooling(split):
    images = torch.cat([split[0], torch.full((1, 28, 28), 255, dtype=torch.uint8)])
    expected = 4 * F.avg_pool2d(images.float(), 2).flatten(1)
    assert torch.equal(sums_of_blocks(images), expected)


def test_preparing_leaves_the_bytes_alone(split):
    before = split[0].clone()
    for prepare in PREPARE.values():
        prepare(split[0])
    assert torch.equal(split[0], before)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if not way.reads_files], ids=lambda way: way.name)
def test_a_run_learns_and_leaves_the_precision_as_it_was(split, way):
    one = replace(way, rates=way.rates[:1], epochs=8, batch_size=30)
    assert accuracy(train(one, split, 0, CPU), split, CPU) > 0.2
    assert torch.get_float32_matmul_precision() == "highest"


def test_classes_across_the_rows_give_the_same_loss_and_gradient():
    torch.manual_seed(0)
    logits = torch.randn(32, 10, requires_grad=True)
    targets = torch.randint(10, (32,))
    losses = [loss(logits, targets) for loss in (F.cross_entropy, cross_entropy)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in losses))


def test_the_rate_with_the_best_mean_is_chosen(monkeypatch):
    good = {1e-3: [0.5, 0.9], 2e-3: [0.8, 0.8], 5e-3: [0.9, 0.5]}
    monkeypatch.setattr(time_to_accuracy, "TUNING_SEEDS", 2)
    monkeypatch.setattr(
        time_to_accuracy, "train", lambda way, split, seed, device: (way.rates[0], seed - 1000)
    )
    monkeypatch.setattr(time_to_accuracy, "accuracy", lambda model, split, device: good[model[0]][model[1]])
    chosen = tuned(replace(WAYS[0], rates=tuple(good)), (), CPU)
    assert chosen.rates == (2e-3,) and chosen.reads_files


def test_the_interval_is_students():
    """Four values with a standard deviation of 1: 3.182 (t, 3 degrees of freedom) / 2."""
    assert interval([-(1.5**0.5), 0, 0, 1.5**0.5]) == pytest.approx(3.182446 / 2, rel=1e-5)
