"""The captured step: what it does with a CUDA graph (gpu), and what it says and does without."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gpulesson import practice_gpu
from gpulesson.capture import captured_step
from gpulesson.data import Batches
from gpulesson.device import DeviceError
from gpulesson.models import MLP


def task(device: str = "cpu", samples: int = 100) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (
        MLP(6, 16, 4).to(device),
        torch.randn(samples, 6).to(device),
        torch.randint(4, (samples,)).to(device),
    )


def by_hand(model, batches, optimizer, *, half: bool = False, rates=()) -> list[torch.Tensor]:
    losses = []
    for number, (inputs, targets) in enumerate(batches):
        if number < len(rates):
            optimizer.param_groups[0]["lr"] = rates[number]
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class TestWithoutGraphs:
    @pytest.fixture
    def step_of(self):
        def make(*arguments, **options):
            with pytest.warns(UserWarning, match="no CUDA graphs on cpu: every call is a plain step"):
                return captured_step(*arguments, **options)

        return make

    @pytest.mark.parametrize("amp", [None, "bf16"])
    def test_the_weights_are_those_of_the_same_steps_by_hand(self, step_of, amp):
        model, inputs, targets = task()
        twin = copy.deepcopy(model)
        batches = Batches(inputs, targets, batch_size=8)  # the last one is short
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        step = step_of(model, F.cross_entropy, optimizer, inputs[:8], targets[:8], amp=amp)
        losses = [step(*batch) for batch in batches]
        expected = by_hand(twin, batches, torch.optim.Adam(twin.parameters(), lr=0.01), half=amp is not None)
        assert losses == expected and len({float(loss) for loss in losses}) == 13
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True))
        assert not any(loss.requires_grad for loss in losses)

    def test_it_says_so(self, step_of):
        model, inputs, targets = task()
        step = step_of(model, F.cross_entropy, torch.optim.SGD(model.parameters()), inputs, targets)
        step(inputs, targets)
        assert step.why_plain == "there are no CUDA graphs on cpu"
        assert (step.plain, step.replayed) == (1, 0)

    def test_the_example_batch_is_not_trained_on(self, step_of):
        model, inputs, targets = task()
        before = copy.deepcopy(model.state_dict())
        step_of(model, F.cross_entropy, torch.optim.SGD(model.parameters()), inputs, targets)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    def test_on_the_practice_gpu(self):
        with practice_gpu(force=True):
            model, inputs, targets = task("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with pytest.warns(UserWarning, match="the practice GPU has no CUDA graphs"):
                step = captured_step(model, F.cross_entropy, optimizer, inputs, targets)
            losses = [step(inputs, targets).item() for _ in range(6)]
        assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
        assert (step.plain, step.replayed) == (6, 0)


class TestRefused:
    def test_float16(self):
        model, inputs, targets = task()
        with pytest.raises(ValueError, match=r"amp='fp16'.*needs a scaler.*give 'bf16'"):
            captured_step(
                model, F.cross_entropy, torch.optim.SGD(model.parameters()), inputs, targets, amp="fp16"
            )

    def test_targets_elsewhere(self):
        model, inputs, targets = task()
        with pytest.raises(ValueError, match="targets are on meta, the inputs on cpu"):
            captured_step(
                model, F.cross_entropy, torch.optim.SGD(model.parameters()), inputs, targets.to("meta")
            )

    def test_a_model_elsewhere(self):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters())
        with pytest.raises(DeviceError, match=r"'layers.0.weight' on cpu, but the batches go to meta"):
            captured_step(model, F.cross_entropy, optimizer, inputs.to("meta"), targets.to("meta"))

    def test_an_optimizer_that_cannot_be_captured(self, monkeypatch):
        """Checked before anything runs, so also where the graph itself could not be."""
        monkeypatch.setattr("gpulesson.capture._why_plain", lambda device: "")
        model, inputs, targets = task()
        with pytest.raises(ValueError, match=r"Adam was built with capturable=False.*capturable=True\)"):
            captured_step(model, F.cross_entropy, torch.optim.Adam(model.parameters()), inputs, targets)

    @pytest.mark.parametrize("kind", ["Adagrad", "Adafactor", "LBFGS"])
    def test_an_optimizer_that_counts_on_the_cpu(self, monkeypatch, kind):
        monkeypatch.setattr("gpulesson.capture._why_plain", lambda device: "")
        model, inputs, targets = task()
        optimizer = getattr(torch.optim, kind)(model.parameters())
        with pytest.raises(ValueError, match=f"{kind} has no option 'capturable'.*take SGD"):
            captured_step(model, F.cross_entropy, optimizer, inputs, targets)


class Graph:
    """Stands in for a CUDA graph: notes what is asked of it."""

    def __init__(self, calls):
        self.calls = calls

    def replay(self):
        self.calls.append("replay")


class TestOrder:
    """When the step warms up, captures and replays; the graph itself is the GPU's."""

    @pytest.fixture
    def calls(self, monkeypatch):
        calls = []

        def capture(step):
            calls.append("capture")
            step._graph, step._settings = Graph(calls), step._current_settings()

        def warm_up(step):
            calls.append("warm up")
            return torch.zeros(())

        monkeypatch.setattr("gpulesson.capture._why_plain", lambda device: "")
        monkeypatch.setattr("gpulesson.capture.CapturedStep._warm_up", warm_up)
        monkeypatch.setattr("gpulesson.capture.CapturedStep._capture", capture)
        return calls

    def test_short_batches_do_not_use_up_the_warm_up(self, calls):
        model, inputs, targets = task()
        step = captured_step(
            model, F.cross_entropy, torch.optim.SGD(model.parameters()), inputs[:8], targets[:8]
        )
        for size in (5, 3, 2, 8, 8, 8, 8, 8):
            step(inputs[:size], targets[:size])
        assert calls == ["warm up"] * 3 + ["capture", "replay", "replay"]
        assert (step.plain, step.replayed) == (6, 2)

    @pytest.mark.parametrize(
        "change",
        [
            lambda model, optimizer: optimizer.param_groups[0].update(lr=0.5),
            lambda model, optimizer: model.layers[0].eval(),
            lambda model, optimizer: next(model.parameters()).requires_grad_(False),
        ],
        ids=["rate", "mode of a layer", "frozen parameter"],
    )
    def test_what_a_graph_has_built_in_is_captured_anew_when_it_changes(self, calls, change):
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters())
        step = captured_step(model, F.cross_entropy, optimizer, inputs, targets)
        for _ in range(5):
            step(inputs, targets)
        change(model, optimizer)
        step(inputs, targets)
        step(inputs, targets)
        assert calls[3:] == ["capture", "replay", "replay", "capture", "replay", "replay"]


@pytest.mark.gpu
class TestGraph:
    def step(self, rates=(), **options):
        model, inputs, targets = task("cuda")
        twin = copy.deepcopy(model)
        batches = list(Batches(inputs, targets, batch_size=8))
        optimizers = [
            torch.optim.Adam(m.parameters(), lr=0.01, capturable=True, fused=True) for m in (model, twin)
        ]
        step = captured_step(model, F.cross_entropy, optimizers[0], inputs[:8], targets[:8], **options)
        losses = []
        for number, batch in enumerate(batches):
            if number < len(rates):
                optimizers[0].param_groups[0]["lr"] = rates[number]
            losses.append(step(*batch))
        expected = by_hand(twin, batches, optimizers[1], half=bool(options), rates=rates)
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
        return step

    def test_the_weights_are_those_of_the_same_steps_by_hand(self):
        step = self.step()
        assert not step.why_plain
        assert (step.plain, step.replayed) == (4, 9)  # three to warm up, and the short batch

    def test_bfloat16(self):
        self.step(amp="bf16")

    def test_a_schedule_takes_effect(self):
        self.step(rates=[0.01] * 6 + [0.1, 0.0] + [0.02] * 5)

    def test_no_replay_waits(self):
        model, inputs, targets = task("cuda", 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = captured_step(model, F.cross_entropy, optimizer, inputs, targets)
        for _ in range(4):
            step(inputs, targets)
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(inputs, targets)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert step.replayed == 2
