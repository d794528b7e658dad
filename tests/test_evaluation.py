from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gpulesson
from gpulesson.data import Batches
from gpulesson.device import DeviceError
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP

READS = ("aten._local_scalar_dense", "aten._to_copy", "aten.nonzero", "aten.bincount", "aten.item")


def task(samples: int = 100, classes: int = 4) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return MLP(6, 16, classes), torch.randn(samples, 6), torch.randint(classes, (samples,))


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


class TestAgainstScikitLearn:
    @pytest.mark.parametrize("batch_size", [7, 100])
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_loss_accuracy_and_confusion(self, batch_size, reduction):
        model, inputs, targets = task()
        loss_fn = nn.CrossEntropyLoss(reduction=reduction)
        result = evaluate(model, Batches(inputs, targets, batch_size=batch_size), loss_fn, "cpu")
        with torch.no_grad():
            probabilities = model(inputs).double().softmax(1).numpy()
        predicted = probabilities.argmax(1)
        assert result.loss == pytest.approx(log_loss(targets, probabilities, labels=range(4)), rel=1e-6)
        assert result.accuracy == pytest.approx(accuracy_score(targets, predicted))
        assert np.array_equal(result.confusion.numpy(), confusion_matrix(targets, predicted, labels=range(4)))
        assert result.confusion.dtype == torch.int64 and result.samples == 100
        assert str(result) == f"loss {result.loss:.4f}, accuracy {result.accuracy:.2%} on 100 samples"

    @pytest.mark.parametrize(
        ("ignored", "dtype"), [(-100, torch.int64), (2, torch.int64), (255, torch.uint8)]
    )
    def test_ignored_labels_count_neither_as_right_nor_as_wrong(self, ignored, dtype):
        model, inputs, targets = task()
        targets[::3] = ignored
        loss_fn = nn.CrossEntropyLoss(ignore_index=ignored)
        result = evaluate(model, [(inputs, targets.to(dtype))], loss_fn, "cpu")
        kept = targets != ignored
        with torch.no_grad():
            probabilities = model(inputs[kept]).double().softmax(1).numpy()
        predicted, truth = probabilities.argmax(1), targets[kept]
        assert result.loss == pytest.approx(log_loss(truth, probabilities, labels=range(4)), rel=1e-6)
        assert result.accuracy == pytest.approx(accuracy_score(truth, predicted))
        assert np.array_equal(result.confusion.numpy(), confusion_matrix(truth, predicted, labels=range(4)))

    def test_labels_as_bytes_do_not_overflow(self):
        model, inputs, targets = task(400, classes=40)
        result = evaluate(model, Batches(inputs, targets.byte(), batch_size=50), F.cross_entropy, "cpu")
        predicted = model(inputs).argmax(1)
        assert np.array_equal(
            result.confusion.numpy(), confusion_matrix(targets, predicted, labels=range(40))
        )

    def test_pixels_have_classes_too(self):
        torch.manual_seed(0)
        model, inputs = nn.Conv2d(1, 3, 1), torch.randn(5, 1, 8, 8)
        targets = torch.randint(3, (5, 8, 8))
        result = evaluate(model, [(inputs, targets)], F.cross_entropy, "cpu")
        predicted = model(inputs).argmax(1)
        assert result.accuracy == pytest.approx(accuracy_score(targets.flatten(), predicted.flatten()))
        assert result.samples == 5

    def test_regression_has_neither_accuracy_nor_confusion(self):
        torch.manual_seed(0)
        model, inputs, targets = nn.Linear(3, 1), torch.randn(50, 3), torch.randn(50, 1)
        result = evaluate(model, Batches(inputs, targets, batch_size=16), nn.MSELoss(), "cpu")
        assert result.loss == pytest.approx((model(inputs) - targets).square().mean().item(), rel=1e-6)
        assert result.accuracy is None and result.confusion is None
        assert str(result) == f"loss {result.loss:.4f} on 50 samples"


class TestModes:
    def mixed(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
        model[1].eval()  # frozen statistics, as in fine-tuning
        return model

    def test_every_submodule_is_left_as_it_was_found(self):
        model = self.mixed()
        _, inputs, targets = task()
        before = modes(model)
        evaluate(model, [(inputs, targets)], F.cross_entropy, "cpu")
        assert modes(model) == before == [True, True, False, True, True]

    def test_also_after_an_exception(self):
        model = self.mixed()
        _, inputs, targets = task()
        before = modes(model)
        for broken in ([], [(inputs, targets), (inputs, targets + 4)], [(inputs[:, :2], targets)]):
            with pytest.raises((ValueError, RuntimeError)):
                evaluate(model, broken, F.cross_entropy, "cpu")
            assert modes(model) == before

    def test_dropout_is_off_and_statistics_stay(self):
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))
        _, inputs, targets = task()
        first, again = (evaluate(model, [(inputs, targets)], F.cross_entropy, "cpu").loss for _ in range(2))
        assert first == again
        assert model[0].num_batches_tracked == 0

    def test_no_graph_is_recorded(self):
        seen = []

        class Spy(MLP):
            def forward(self, inputs):
                logits = super().forward(inputs)
                seen.append((torch.is_inference_mode_enabled(), logits.requires_grad))
                return logits

        _, inputs, targets = task()
        evaluate(Spy(6, 4), [(inputs, targets)], F.cross_entropy, "cpu")
        assert seen == [(True, False)] and not torch.is_inference_mode_enabled()


class TestTransfers:
    def test_no_batch_is_read(self, count_operators):
        """Ten times the batches: not one read or copy to the host more."""

        def reads(batches: int) -> int:
            model, inputs, targets = task(batches * 10)
            loader = Batches(inputs, targets, batch_size=10)
            counts = count_operators(
                lambda: evaluate(model, loader, F.cross_entropy, "cpu", check_targets=False)
            )
            return sum(counts[name] for name in READS)

        assert reads(20) == reads(2)

    def test_large_counts_and_the_loss_survive_travelling_as_one_tensor(self):
        """2**24 + 1 is the first count that float32 would lose."""
        from gpulesson.evaluation import _summary

        confusion = torch.tensor([[2**24 + 1, 0], [3, 2**40 + 1]], dtype=torch.float64)
        result = _summary([torch.tensor(0.1), torch.tensor(0.3)], [3, 1], confusion, "mean")
        assert result.confusion.tolist() == [[2**24 + 1, 0], [3, 2**40 + 1]]
        assert result.loss == pytest.approx(0.15, rel=1e-6)

    def test_counting_goes_on_exactly_beyond_what_float32_can_hold(self):
        from gpulesson.evaluation import _count

        logits, targets = torch.tensor([[0.0, 1.0]]), torch.tensor([1])
        confusion = _count(logits, targets, None)
        confusion[1, 1] = 2**24
        assert _count(logits, targets, confusion).tolist() == [[0, 0], [0, 2**24 + 1]]

    @pytest.mark.parametrize(("check", "waits"), [(False, 1), (True, 2)])
    def test_one_transfer_at_the_end(self, check, waits):
        """And one before it if the labels are on the GPU and are to be checked: on the practice GPU's log."""
        with gpulesson.practice_gpu(force=True) as gpu:
            model, inputs, targets = task()
            batches = Batches(inputs.to("cuda"), targets.to("cuda"), batch_size=10)
            model.to("cuda")
            gpu.clear_events()
            evaluate(model, batches, F.cross_entropy, "cuda", check_targets=check)
            assert {event.kind for event in gpu.events} == {"device to host"}
            assert sum(event.count for event in gpu.events) == waits

    @pytest.mark.gpu
    def test_on_a_gpu_only_the_end_waits(self, nothing_waits):
        model, inputs, targets = task(640)
        model.to("cuda")
        batches = Batches(inputs.cuda(), targets.cuda(), batch_size=64)
        expected = evaluate(model, batches, F.cross_entropy, "cuda")
        result = evaluate(model, nothing_waits(batches), F.cross_entropy, "cuda", check_targets=False)
        assert torch.equal(result.confusion, expected.confusion) and not result.confusion.is_cuda


class TestRefusals:
    def test_no_batches(self):
        model, _, _ = task()
        with pytest.raises(ValueError, match="nothing to evaluate: the batches are empty"):
            evaluate(model, [], F.cross_entropy, "cpu")

    @pytest.mark.parametrize("label", [-7, -1, 4])
    def test_labels_out_of_range(self, label):
        model, inputs, targets = task(30)
        targets[25] = label
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=10)
        with pytest.raises(ValueError, match=rf"the data: the targets hold {label}, but must lie in 0 to 3"):
            evaluate(model, loader, F.cross_entropy, "cpu")

    def test_a_model_on_another_device_than_its_batches(self):
        model, inputs, targets = task()
        with pytest.raises(DeviceError, match=r"'layers.0.weight' on meta, but the batches go to cpu"):
            evaluate(model.to("meta"), [(inputs, targets)], F.cross_entropy, "cpu")

    def test_a_loss_per_sample(self):
        model, inputs, targets = task()
        with pytest.raises(ValueError, match="reduction='none'"):
            evaluate(model, [(inputs, targets)], nn.CrossEntropyLoss(reduction="none"), "cpu")
