from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gpulesson
from gpulesson import _progress
from gpulesson.checkpoint import load_checkpoint, resume, save_checkpoint
from gpulesson.data import Batches, load_iris
from gpulesson.device import DeviceError
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import History, NonFiniteLossError, fit, train_epoch

# Printed by the boot camp notebook "Using GPU" after epochs 1, 11, …, 91.
PUBLISHED = [
    1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
    0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931,
]  # fmt: skip


def hand_written(model, batches, loss_fn, optimizer, device) -> list[torch.Tensor]:
    """The loop that the lessons write out in full."""
    losses = []
    model.train()
    for inputs, targets in batches:
        inputs = inputs.to(device)
        targets = targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def data_loader(*tensors: torch.Tensor, batch_size: int) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size)


def task(samples: int = 100, *, seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return MLP(6, 16, 4), torch.randn(samples, 6), torch.randint(4, (samples,))


class TestPublishedTable:
    def losses(self, device: str, epochs: int) -> list[float]:
        from sklearn.model_selection import train_test_split

        iris = load_iris(widely_copied=True)
        features, _, targets, _ = train_test_split(
            iris.features.numpy(), iris.targets.numpy(), test_size=0.2, random_state=33
        )
        inputs, targets = torch.FloatTensor(features), torch.LongTensor(targets)
        torch.manual_seed(32)
        model = MLP(4, 8, 9, 3).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        batches = Batches(inputs.to(device), targets.to(device), batch_size=len(inputs))
        return fit(model, batches, nn.CrossEntropyLoss(), optimizer, device, epochs).train_loss

    def test_on_a_cpu(self):
        losses = self.losses("cpu", 100)[::10]
        assert f"{losses[0]:.8f}" == "1.15071142"
        assert losses == pytest.approx(PUBLISHED, abs=5e-5)

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        assert self.losses("cuda", 21)[::10] == pytest.approx(PUBLISHED[:3], abs=5e-4)


class TestSameAsByHand:
    @pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
    def test_same_weights_bit_for_bit_and_same_losses(self, make):
        ours, inputs, targets = task()
        theirs, _, _ = task()
        batches = Batches(inputs, targets, batch_size=32)
        optimizers = [make(model.parameters(), lr=0.05) for model in (ours, theirs)]
        for _ in range(3):
            loss = train_epoch(ours, batches, F.cross_entropy, optimizers[0], "cpu")
            by_hand = hand_written(theirs, batches, F.cross_entropy, optimizers[1], "cpu")
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)
        weighted = sum(x.item() * n for x, n in zip(by_hand, [32, 32, 32, 4], strict=True)) / 100
        assert loss == pytest.approx(weighted, rel=1e-12)

    @pytest.mark.parametrize("loader", [Batches, data_loader])
    @pytest.mark.parametrize("train", [train_epoch, partial(fit, epochs=1)])
    def test_no_operator_more_in_a_step(self, count_operators, loader, train):
        """Twice the steps cost exactly the operators of so many steps written by hand."""

        def operators(run, steps: int):
            model, inputs, targets = task(steps * 8)
            optimizer = torch.optim.Adam(model.parameters())
            batches = loader(inputs, targets, batch_size=8)
            run(
                model, batches, nn.CrossEntropyLoss(), optimizer, "cpu"
            )  # the optimizer's state exists from now on
            return count_operators(lambda: run(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu"))

        ours = operators(train, 20) - operators(train, 10)
        by_hand = operators(hand_written, 20) - operators(hand_written, 10)
        assert ours == by_hand
        assert ours.total() > 100

    def test_a_whole_epoch_adds_one_operator_and_no_host_read(self, count_operators):
        model, inputs, targets = task()
        batches = Batches(inputs, targets, batch_size=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        arguments = (model, batches, nn.CrossEntropyLoss(), optimizer, "cpu")
        ours = count_operators(lambda: train_epoch(*arguments))
        by_hand = count_operators(lambda: hand_written(*arguments))
        assert ours - by_hand == {"aten.stack": 1}
        assert ours["aten._to_copy"] == 0


class TestMeanLoss:
    @pytest.mark.parametrize(
        "loss_fn", [nn.CrossEntropyLoss(), F.cross_entropy, nn.CrossEntropyLoss(reduction="sum")]
    )
    def test_every_sample_counts_once_also_in_a_short_last_batch(self, loss_fn):
        model, inputs, targets = task(100)
        frozen = torch.optim.SGD(model.parameters(), lr=0.0)
        loss = train_epoch(model, Batches(inputs, targets, batch_size=30), loss_fn, frozen, "cpu")
        with torch.no_grad():
            expected = F.cross_entropy(model(inputs).double(), targets, reduction="none").mean().item()
            batch_means = [
                F.cross_entropy(model(inputs[i : i + 30]), targets[i : i + 30]) for i in (0, 30, 60, 90)
            ]
        assert loss == pytest.approx(expected, rel=1e-6)
        assert statistics.mean(map(float, batch_means)) != pytest.approx(expected, rel=1e-4)

    def test_regression(self):
        torch.manual_seed(0)
        model, inputs, targets = nn.Linear(3, 1), torch.randn(50, 3), torch.randn(50, 1)
        frozen = torch.optim.SGD(model.parameters(), lr=0.0)
        loss = train_epoch(model, Batches(inputs, targets, batch_size=16), nn.MSELoss(), frozen, "cpu")
        assert loss == pytest.approx((model(inputs) - targets).square().mean().item(), rel=1e-6)

    def test_inputs_may_be_in_a_mapping_or_a_tuple(self):
        class Two(nn.Module):
            def __init__(self, key: Any) -> None:
                super().__init__()
                self.linear, self.keys = nn.Linear(6, 4), key

            def forward(self, inputs):
                return self.linear(inputs[self.keys[0]] + inputs[self.keys[1]])

        _, inputs, targets = task()
        for batch, keys in (({"a": inputs, "b": inputs}, "ab"), ((inputs, inputs), (0, 1))):
            model = Two(keys)
            frozen = torch.optim.SGD(model.parameters(), lr=0.0)
            expected = F.cross_entropy(model.linear(2 * inputs), targets).item()
            trained = train_epoch(model, [(batch, targets)], F.cross_entropy, frozen, "cpu")
            assert trained == pytest.approx(expected, rel=1e-6)
            evaluated = evaluate(model, [(batch, targets)], F.cross_entropy, "cpu")
            assert evaluated.loss == pytest.approx(expected, rel=1e-6)

    def test_a_loss_per_sample_is_refused(self):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = Batches(inputs, targets, batch_size=10)
        with pytest.raises(ValueError, match=r"reduction='none'.*use reduction='mean'"):
            train_epoch(model, batches, nn.CrossEntropyLoss(reduction="none"), optimizer, "cpu")


def unlike_tensors(inputs: torch.Tensor, targets: torch.Tensor) -> DataLoader:
    """Return a loader of samples that might as well be read from files: batches of ten."""
    return DataLoader(list(zip(inputs, targets, strict=True)), batch_size=10)


class TestLabels:
    """Those out of range are refused, on a GPU before its loss sees them."""

    @pytest.fixture
    def loss_fn(self):
        """A loss that must never see such labels: on CUDA that alone would be fatal."""
        calls = []

        def loss_fn(logits, targets):
            calls.append(targets)
            assert targets.min() >= 0 and targets.max() < logits.shape[1], "the loss got a bad label"
            return F.cross_entropy(logits, targets)

        loss_fn.calls = calls
        return loss_fn

    def train(self, model, batches, loss_fn, device="cuda", epochs=1):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return fit(model, batches, loss_fn, optimizer, device, epochs)

    @pytest.mark.parametrize("label", [-1, 4])
    @pytest.mark.parametrize(
        "cross_entropy", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), nn.NLLLoss()]
    )
    def test_the_loss_of_the_cpu_looks_itself(self, cross_entropy, label, count_operators):
        model, inputs, targets = task(40)
        batches = unlike_tensors(inputs, targets)
        looks = count_operators(lambda: self.train(model, batches, cross_entropy, "cpu"))
        assert looks["aten.aminmax"] == 0
        targets[25] = label
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            self.train(model, batches, cross_entropy, "cpu")

    @pytest.mark.parametrize(
        "make",
        [Batches, data_loader, lambda *both, batch_size: list(data_loader(*both, batch_size=batch_size))],
    )
    def test_those_in_memory_are_looked_at_once_and_before_the_first_step(self, make, count_operators):
        model, inputs, targets = task(40)
        before = [parameter.clone() for parameter in model.parameters()]
        good = make(inputs, targets.clone(), batch_size=10)
        targets[25] = 7
        bad = make(inputs, targets, batch_size=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batches, validation, where in (
            (bad, None, "^(step 3|the data)"),
            (good, bad, "^validation: (step 3|the data)"),
        ):
            with pytest.raises(ValueError, match=where + r": the targets hold 7, but must lie in 0 to 3"):
                fit(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", 3, validation=validation)
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        looks = count_operators(lambda: self.train(model, good, nn.CrossEntropyLoss(), "cpu", epochs=3))
        assert looks["aten.aminmax"] == (4 if isinstance(good, list) else 1)

    @pytest.mark.parametrize("label", [-1, 4, 255])
    def test_in_one_tensor(self, loss_fn, label):
        """All labels are looked at in the first step, before the weights change."""
        with gpulesson.practice_gpu(force=True):
            model, inputs, targets = task(40)
            targets[33] = label
            before = [parameter.clone() for parameter in model.cuda().parameters()]
            batches = Batches(inputs, targets, batch_size=10, shuffle=True)
            with pytest.raises(
                ValueError, match=rf"the data: the targets hold {label}, but must lie in 0 to 3"
            ):
                self.train(model, batches, loss_fn)
            assert loss_fn.calls == []
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    @pytest.mark.parametrize("label", [-1, 4])
    @pytest.mark.parametrize("resident", [False, True])
    def test_in_the_third_batch(self, loss_fn, label, resident):
        with gpulesson.practice_gpu(force=True):
            model, inputs, targets = task(40)
            targets[25] = label
            inputs, targets = (each.cuda() if resident else each for each in (inputs, targets))
            loader = unlike_tensors(inputs, targets)
            with pytest.raises(
                ValueError, match=rf"step 3 \(.*\): the targets hold {label}.*4 logits a sample.*labels"
            ):
                self.train(model.cuda(), loader, loss_fn)
            assert len(loss_fn.calls) == 2

    def test_as_bytes(self, loss_fn):
        """-100 as a byte is 156: a label 156 is still out of range, whatever the loss ignores."""
        with gpulesson.practice_gpu(force=True):
            model, inputs, targets = task(40)
            targets[7] = 156
            with pytest.raises(ValueError, match="the targets hold 156"):
                self.train(model.cuda(), [(inputs, targets.byte())], nn.CrossEntropyLoss())

    def test_that_shuffling_brings_in_a_later_epoch(self, loss_fn):
        model, inputs, targets = task(6)
        targets[5] = 4
        orders = iter([[0, 1, 2, 3, 4], [0, 1, 2, 3, 5]])  # as shuffle=True, drop_last=True may draw them

        class Loader:
            def __iter__(self):
                order = next(orders)
                return iter([(inputs[order], targets[order])])

        with (
            gpulesson.practice_gpu(force=True),
            pytest.raises(ValueError, match="the targets hold 4"),
        ):
            self.train(model.cuda(), Loader(), loss_fn, epochs=2)
        assert len(loss_fn.calls) == 1

    @pytest.mark.parametrize("ignored", [-100, 255, 2])
    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_that_the_loss_ignores_are_legal(self, ignored, device):
        with gpulesson.practice_gpu(force=True):
            model, inputs, targets = task(40)
            model.to(device)
            targets[::3] = ignored
            loss_fn, kept = nn.CrossEntropyLoss(ignore_index=ignored), targets != ignored
            expected = F.cross_entropy(model(inputs[kept].to(device)), targets[kept].to(device)).item()
            history = self.train(model, [(inputs, targets)], loss_fn, device)
            assert history.train_loss == [pytest.approx(expected, rel=1e-6)]
            for bad in (-1, 4):
                targets[1] = bad
                with pytest.raises(
                    ValueError, match=rf"hold {bad}, .*nn\.CrossEntropyLoss\(ignore_index=…\)"
                ):
                    self.train(model, [(inputs, targets)], loss_fn, device)

    def test_are_looked_at_before_they_move(self):
        """The device's copy is never read: on a GPU that would wait, and on "meta" it has no values."""
        batches = [(torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 9]))]
        with pytest.raises(ValueError, match="the targets hold 9"):
            self.train(MLP(6, 4).to("meta"), batches, F.cross_entropy, "meta")


class TestBatches:
    @pytest.mark.parametrize(
        "batches", [[], iter([]), Batches(torch.zeros(0, 6), torch.zeros(0), batch_size=4)]
    )
    def test_none(self, batches):
        model, _, _ = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for train in (train_epoch, partial(fit, epochs=1)):
            with pytest.raises(ValueError, match=r"epoch 1: the batches are empty. Give at least one batch"):
                train(model, batches, F.cross_entropy, optimizer, "cpu")


class TestPlacement:
    """The batches go to one device; here "meta" is the other one, which every machine has."""

    def train(self, model, optimizer=None, loss_fn=F.cross_entropy, device="cpu"):
        batches = [(torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0]))]
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        return fit(model, batches, loss_fn, optimizer, device, 1)

    def test_a_buffer_left_behind(self):
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4))
        model[0].running_var = model[0].running_var.to("meta")
        with pytest.raises(DeviceError, match=r"'0.running_var' on meta, but the batches go to cpu"):
            self.train(model)

    def test_a_loss_with_weights_left_behind(self):
        loss_fn = nn.CrossEntropyLoss(weight=torch.ones(4, device="meta"))
        with pytest.raises(DeviceError, match=r"loss function has 'weight' on meta.*loss_fn.to\(device\)"):
            self.train(MLP(6, 4), loss_fn=loss_fn)

    def test_an_optimizer_of_another_model(self):
        stranger = torch.optim.SGD(MLP(6, 4).to("meta").parameters(), lr=0.1)
        with pytest.raises(
            DeviceError, match=r"none of the model's parameters: its own are on meta, .*on cpu"
        ):
            self.train(MLP(6, 4), optimizer=stranger)

    def test_a_parameter_of_the_optimizer_elsewhere(self):
        model, extra = MLP(6, 4), nn.Linear(2, 2).to("meta")
        optimizer = torch.optim.SGD([*model.parameters(), *extra.parameters()], lr=0.1)
        with pytest.raises(DeviceError, match=r"the optimizer has '0\.2' on meta.*build the optimizer after"):
            self.train(model, optimizer=optimizer)

    def test_a_model_moved_after_the_first_step(self):
        model = MLP(6, 4)
        optimizer = torch.optim.Adam(model.parameters())
        self.train(model, optimizer=optimizer)
        for state in optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].to("meta")
        with pytest.raises(DeviceError, match=r"keeps 'exp_avg' on meta.*moved after the first step"):
            self.train(model, optimizer=optimizer)

    def test_part_of_the_model_and_other_parameters_besides_may_be_trained(self):
        model, head = MLP(6, 5, 4), nn.Linear(1, 1)
        frozen = model.layers[0].weight.clone()
        optimizer = torch.optim.SGD([*model.layers[2].parameters(), *head.parameters()], lr=0.1)
        self.train(model, optimizer=optimizer)
        assert torch.equal(model.layers[0].weight, frozen)


class TestNonFinite:
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_epoch_and_step_are_named_and_the_history_is_kept(self, bad):
        model, inputs, targets = task(40)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        calls = []

        def loss_fn(logits, labels):
            calls.append(None)
            return F.cross_entropy(logits, labels) * (bad if len(calls) in (11, 12) else 1)

        with pytest.raises(NonFiniteLossError) as caught:
            fit(model, Batches(inputs, targets, batch_size=10), loss_fn, optimizer, "cpu", 5)
        assert f"the loss is {bad} in epoch 3, step 3" in str(caught.value)
        assert "learning rate" in str(caught.value)
        assert (caught.value.epoch, caught.value.step) == (3, 3)
        assert len(caught.value.history.train_loss) == 2

    def test_a_validation_loss_names_the_epoch_of_the_whole_run(self):
        model, inputs, targets = task(40)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sizes = []

        def loss_fn(logits, labels):
            sizes.append(len(labels))
            return F.cross_entropy(logits, labels) * (float("nan") if sizes.count(7) == 3 else 1)

        held_out = [(inputs[:7], targets[:7])]  # seen once before the first epoch, too
        with pytest.raises(NonFiniteLossError, match="validation loss is nan after epoch 6") as caught:
            batches = [(inputs, targets)]
            fit(model, batches, loss_fn, optimizer, "cpu", range(4, 9), validation=held_out)
        assert caught.value.epoch == 6 and len(caught.value.history.train_loss) == 1

    def test_a_learning_rate_far_too_high(self):
        torch.manual_seed(0)
        model, inputs, targets = nn.Linear(3, 1), torch.randn(50, 3), torch.randn(50, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
        with pytest.raises(NonFiniteLossError):
            fit(model, [(inputs, targets)], nn.MSELoss(), optimizer, "cpu", 50)


class TestFit:
    def test_it_repeats_train_epoch_and_evaluates_after_each(self):
        model, inputs, targets = task()
        twin, _, _ = task()
        batches, held_out = Batches(inputs, targets, batch_size=25), [(inputs[:10], targets[:10])]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = fit(model, batches, F.cross_entropy, optimizer, "cpu", 4, validation=held_out)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for epoch in range(4):
            assert history.train_loss[epoch] == train_epoch(twin, batches, F.cross_entropy, optimizer, "cpu")
            with torch.no_grad():
                logits = twin(inputs[:10])
            assert history.validation_loss[epoch] == pytest.approx(
                F.cross_entropy(logits, targets[:10]).item()
            )
            correct = (logits.argmax(1) == targets[:10]).float().mean().item()
            assert history.validation_accuracy[epoch] == pytest.approx(correct)
        assert len(history.seconds) == 4 and min(history.seconds) > 0

    @pytest.mark.parametrize("ignored", [-100, 2])
    def test_validation_leaves_out_ignored_labels_as_evaluate_does(self, ignored):
        model, inputs, targets = task()
        targets[::3] = ignored
        loss_fn = nn.CrossEntropyLoss(ignore_index=ignored)
        batches = Batches(inputs, targets, batch_size=30)  # several, of unequal size
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = fit(model, batches, loss_fn, optimizer, "cpu", 1, validation=batches)
        kept = targets != ignored
        correct = (model(inputs[kept]).argmax(1) == targets[kept]).float().mean().item()
        assert history.validation_accuracy == [pytest.approx(correct)]
        assert history.validation_loss == [evaluate(model, batches, loss_fn, "cpu").loss]

    def test_the_model_trains_in_training_mode_and_is_left_in_it(self):
        seen = []

        class Spy(MLP):
            def forward(self, inputs):
                seen.append(self.training)
                return super().forward(inputs)

        model = Spy(6, 4).eval()
        _, inputs, targets = task(20)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fit(model, [(inputs, targets)], F.cross_entropy, optimizer, "cpu", 2, validation=[(inputs, targets)])
        assert seen == [False, True, False, True, False] and model.training  # a look at the first

    def test_a_scheduler_is_stepped_once_an_epoch(self):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        fit(
            model,
            Batches(inputs, targets, batch_size=10),
            F.cross_entropy,
            optimizer,
            "cpu",
            3,
            scheduler=scheduler,
        )
        assert optimizer.param_groups[0]["lr"] == 0.125

    @pytest.mark.parametrize("validated", [True, False])
    def test_a_plateau_scheduler_is_given_the_loss(self, monkeypatch, validated):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        given = []
        monkeypatch.setattr(scheduler, "step", given.append)
        batches = [(inputs, targets)]
        validation = batches if validated else None
        history = fit(
            model, batches, F.cross_entropy, optimizer, "cpu", 3, validation=validation, scheduler=scheduler
        )
        assert given == (history.validation_loss if validated else history.train_loss)

    def test_it_goes_on_after_epochs_that_are_finished(self, tmp_path):
        """Saved after the second epoch and resumed, it ends as a run that was not stopped."""

        def run(*numbers):
            model, inputs, targets = task()
            parts = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
            if (tmp_path / "last.pt").exists():
                assert resume(load_checkpoint(tmp_path / "last.pt"), **parts) == numbers[0].start
            batches = Batches(inputs, targets, batch_size=30, shuffle=True)
            losses = []
            for each in numbers:
                losses += fit(model, batches, F.cross_entropy, parts["optimizer"], "cpu", each).train_loss
            return parts, losses

        expected, whole = run(4)
        parts, _ = run(2)
        save_checkpoint(tmp_path / "last.pt", epoch=2, **parts)
        parts, rest = run(range(2, 3), range(3, 4))
        assert rest == whole[2:]
        for mine, other in zip(parts["model"].parameters(), expected["model"].parameters(), strict=True):
            assert torch.equal(mine, other)

    def test_no_epochs(self):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = fit(model, [(inputs, targets)], F.cross_entropy, optimizer, "cpu", 0)
        assert history == History() and repr(history) == "History of 0 epochs"

    def test_it_learns(self):
        torch.manual_seed(0)
        inputs = torch.randn(300, 2)
        targets = (inputs[:, 0] * inputs[:, 1] > 0).long()  # no straight line divides these
        model = MLP(2, 16, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        batches = Batches(inputs, targets, batch_size=32, shuffle=True)
        history = fit(model, batches, F.cross_entropy, optimizer, "cpu", 30, validation=batches)
        assert history.train_loss[-1] < 0.5 * history.train_loss[0]
        assert history.validation_accuracy[-1] > 0.9


class TestHistory:
    full = History([2.0, 1.0], [2.1, 1.2], [0.5, 0.75], [0.2, 0.4])

    def test_text(self):
        assert repr(self.full) == (
            "History of 2 epochs: train loss 2.0000 → 1.0000, validation loss 1.2000, "
            "validation accuracy 75.00%, 0.3 s an epoch (median)"
        )

    def test_text_of_one_made_by_hand_without_times(self):
        assert repr(History([2.0, 1.0])) == "History of 2 epochs: train loss 2.0000 → 1.0000"

    def test_it_draws_itself(self):
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot as plt

        axes = self.full.plot()
        right = next(other for other in axes.figure.axes if other is not axes)
        assert [list(line.get_ydata()) for line in axes.get_lines()] == [[2.0, 1.0], [2.1, 1.2]]
        assert list(right.get_lines()[0].get_ydata()) == [50.0, 75.0]
        assert list(right.get_lines()[0].get_xdata()) == [1, 2]
        assert (axes.get_xlabel(), right.get_ylabel()) == ("epoch", "accuracy (%)")
        assert "loss" in axes.get_ylabel()
        labels = [text.get_text() for text in right.get_legend().get_texts()]
        assert labels == ["training loss", "validation loss", "validation accuracy"]
        plt.close(axes.figure)

    def test_it_draws_into_axes_that_are_given(self):
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot as plt

        figure, axes = plt.subplots()
        assert History([2.0, 1.0], seconds=[0.1, 0.1]).plot(axes) is axes
        assert figure.axes == [axes] and len(axes.get_lines()) == 1
        plt.close(figure)


class TestProgress:
    @pytest.mark.parametrize(
        ("terminal", "kernel", "variable", "watched"),
        [
            (True, False, None, True),
            (False, False, None, False),
            (False, False, "JPY_SESSION_NAME", False),  # a program that a notebook started
            (False, True, None, False),  # nbclient, nbconvert
            (False, True, "JPY_SESSION_NAME", True),
            (False, True, "COLAB_RELEASE_TAG", True),
        ],
    )
    def test_who_counts_as_a_person(self, monkeypatch, terminal, kernel, variable, watched):
        monkeypatch.setattr(sys, "stderr", type("Stream", (), {"isatty": lambda self: terminal})())
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        for name in _progress.OPEN_NOTEBOOK:
            monkeypatch.delenv(name, raising=False)
        if kernel:
            monkeypatch.setitem(sys.modules, "ipykernel", sys)
        if variable:
            monkeypatch.setenv(variable, "1")
        assert _progress.person_watches() is watched

    PROGRAM = (
        "import torch; from gpulesson.models import MLP; from gpulesson.training import fit\n"
        "model = MLP(6, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "batches = [(torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0]))]\n"
        "fit(model, batches, torch.nn.CrossEntropyLoss(), optimizer, 'cpu', 3)\n"
    )

    @pytest.mark.slow
    @pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
    def test_a_bar_in_a_real_terminal(self):
        import fcntl
        import pty
        import struct
        import termios

        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 25, 100, 0, 0))  # 25 lines, 100 columns
        process = subprocess.Popen([sys.executable, "-c", self.PROGRAM], stderr=theirs, stdout=theirs)
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        assert process.wait(1200) == 0, shown
        assert b"training: 100%" in shown and b"3/3" in shown and b"loss " in shown

    @pytest.mark.slow
    def test_silence_in_a_pipe(self):
        run = subprocess.run(
            [sys.executable, "-c", self.PROGRAM], capture_output=True, text=True, timeout=1200
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")

    def test_it_works_without_tqdm(self, monkeypatch, capsys):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        arguments = (model, [(inputs, targets)], F.cross_entropy, optimizer, "cpu", 2)
        monkeypatch.setattr(_progress, "person_watches", lambda: True)
        fit(*arguments)
        assert "2/2" in capsys.readouterr().err
        monkeypatch.setitem(sys.modules, "tqdm", None)
        assert len(fit(*arguments).train_loss) == 2
        assert capsys.readouterr().err == ""


class TestOnThePracticeGpu:
    """Its log has every copy between host and device and every wait, on any machine."""

    def traffic(self, batches, train) -> tuple[Counter[str], int]:
        """How many copies of each kind one epoch makes, and how often the host waits."""
        with gpulesson.practice_gpu(force=True) as gpu:
            model, inputs, targets = task(40)
            model.to("cuda")
            optimizer = torch.optim.Adam(model.parameters())
            loader = batches(inputs, targets)
            gpu.clear_events()
            train(model, loader, F.cross_entropy, optimizer, "cuda")
            copies: Counter[str] = Counter()
            for event in gpu.events:
                copies[event.kind] += event.count
            return copies, sum(event.waits for event in gpu.events if event.kind != "host to device")

    @staticmethod
    def resident(inputs, targets):
        return Batches(inputs.to("cuda"), targets.to("cuda"), batch_size=10)

    @staticmethod
    def from_the_host(inputs, targets):
        return data_loader(inputs, targets, batch_size=10)

    def test_an_epoch_waits_once(self):
        assert self.traffic(self.resident, train_epoch) == ({"device to host": 1}, 1)

    def test_fit_waits_also_for_the_labels_in_one_go_and_for_the_last_weights(self):
        assert self.traffic(self.resident, partial(fit, epochs=1)) == ({"device to host": 3}, 3)

    def test_fit_waits_for_labels_on_the_gpu_in_the_first_epoch_only(self):
        with gpulesson.practice_gpu(force=True) as gpu:
            model, inputs, targets = task(40)
            model.to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            batches = self.resident(inputs, targets)
            gpu.clear_events()
            fit(model, batches, F.cross_entropy, optimizer, "cuda", 4, validation=batches)
            reads = sum(event.count for event in gpu.events if event.kind == "device to host")
        # losses and results of each epoch, a look each at both sets of labels, and one batch beforehand
        assert reads == 4 * 2 + 2 + 2

    def test_labels_on_the_host_are_looked_at_there(self):
        expected = ({"host to device": 2 * 4, "device to host": 2}, 2)
        assert self.traffic(self.from_the_host, partial(fit, epochs=1)) == expected

    def test_a_model_left_on_the_cpu(self):
        with gpulesson.practice_gpu(force=True):
            model, inputs, targets = task()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with pytest.raises(DeviceError, match=r"'layers.0.weight' on cpu, but the batches go to cuda:0"):
                fit(model, [(inputs, targets)], F.cross_entropy, optimizer, "cuda", 1)


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.parametrize("where", ["resident", "pinned"])
    def test_no_step_waits(self, where, nothing_waits):
        model, inputs, targets = task(512)
        model.to("cuda")
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        if where == "resident":
            batches = Batches(inputs.cuda(), targets.cuda(), batch_size=64, shuffle=True)
        else:
            batches = DataLoader(TensorDataset(inputs, targets), batch_size=64, pin_memory=True)
        train_epoch(model, batches, F.cross_entropy, optimizer, "cuda")
        watched = nothing_waits(batches)  # the one read comes after the last batch
        train_epoch(model, watched, F.cross_entropy, optimizer, "cuda")

    @pytest.mark.parametrize("resident", [True, False])
    def test_a_bad_label_does_not_poison_the_process(self, resident):
        model, inputs, targets = task(40)
        targets[33] = 4
        model.to("cuda")
        if resident:
            inputs, targets = inputs.cuda(), targets.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = Batches(inputs, targets, batch_size=10)
        with pytest.raises(ValueError, match="the targets hold 4"):
            fit(model, batches, nn.CrossEntropyLoss(), optimizer, "cuda", 1)
        assert torch.ones(3, device="cuda").sum().item() == 3  # CUDA still answers


class TestCompiled:
    @pytest.mark.slow
    def test_a_model_compiled_in_place_is_trained_to_the_same_losses(self):
        (model, inputs, targets), (twin, _, _) = task(), task()
        names = list(model.state_dict())
        model.compile(fullgraph=True)
        batches = Batches(inputs, targets, batch_size=30)  # the last one is short
        histories = [
            fit(network, batches, F.cross_entropy, torch.optim.Adam(network.parameters()), "cpu", 3)
            for network in (model, twin)
        ]
        assert histories[0].train_loss == pytest.approx(histories[1].train_loss, rel=1e-5)
        assert list(model.state_dict()) == names
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
