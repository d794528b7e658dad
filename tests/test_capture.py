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


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "remedy"),
        [
            (torch.optim.SGD, r"build SGD\(model.parameters\(\), …, fused=True\), or give amp='bf16'"),
            (
                lambda parameters: torch.optim.Adam(parameters, capturable=True),
                r"build Adam\(model.parameters\(\), …, fused=True, capturable=True\)",
            ),
            (
                lambda parameters: torch.optim.RMSprop(parameters, capturable=True),
                r"build Adam\(model.parameters\(\), …, fused=True, capturable=True\)",
            ),
        ],
        ids=["SGD", "Adam", "RMSprop"],
    )
    def test_float16_with_an_optimizer_that_is_not_fused(self, monkeypatch, make, remedy):
        monkeypatch.setattr("gpulesson.capture._why_plain", lambda device: "")
        model, inputs, targets = task()
        with pytest.raises(ValueError, match=rf"float16 leaves out .* only a fused optimizer can: {remedy}"):
            captured_step(model, F.cross_entropy, make(model.parameters()), inputs, targets, amp="fp16")

    @pytest.mark.parametrize("fused", [False, True])
    def test_sgd_reads_a_rate_that_is_a_tensor_unless_it_is_fused(self, monkeypatch, fused):
        monkeypatch.setattr("gpulesson.capture._why_plain", lambda device: "")
        model, inputs, targets = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), fused=fused)
        if fused:
            assert captured_step(model, F.cross_entropy, optimizer, inputs, targets).plain == 0
        else:
            with pytest.raises(
                ValueError, match=r"back to the CPU.*fused=True\), or give the learning rate as a n"
            ):
                captured_step(model, F.cross_entropy, optimizer, inputs, targets)

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
        with pytest.raises(
            ValueError,
            match=f"{kind} (has no option 'capturable'|computes the loss several times).*(take|use) SGD",
        ):
            captured_step(model, F.cross_entropy, optimizer, inputs, targets)


ADAM = {"lr": 0.01, "capturable": True, "fused": True}


class Noisy(nn.Module):
    """Draws from a generator of its own, and computes with a number of Python's."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.layer, self.generator, self.factor = nn.Linear(6, 4), generator, 0.1

    def forward(self, inputs):
        noise = torch.randn(inputs.shape, generator=self.generator, device=inputs.device)
        return self.layer(inputs + self.factor * noise)


class Steps:
    """A captured step and the same steps by hand, of two equal models, over the same batches."""

    def __init__(self, device: str, make=lambda p: torch.optim.Adam(p, **ADAM), amp=None, model=None) -> None:
        made, inputs, targets = task(device)
        self.model = made if model is None else model
        self.twin = copy.deepcopy(self.model)
        self.batches = list(Batches(inputs, targets, batch_size=8))
        self.optimizer, self.others = (make(each.parameters()) for each in (self.model, self.twin))
        self.amp, self.scaler = amp, torch.amp.GradScaler(device) if amp == "fp16" else None
        self.step = captured_step(self.model, F.cross_entropy, self.optimizer, *self.batches[0], amp=amp)

    def by_hand(self, inputs, targets):
        dtype = torch.float16 if self.amp == "fp16" else torch.bfloat16
        self.others.zero_grad()
        with torch.autocast(inputs.device.type, dtype, enabled=self.amp is not None):
            loss = F.cross_entropy(self.twin(inputs), targets)
        if self.scaler is None:
            loss.backward()
            self.others.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.others)
            self.scaler.update()
        return loss.detach()

    def go(self, start: int, stop: int) -> None:
        """Take these steps, and compare losses and weights."""
        for batch in self.batches[start:stop]:
            torch.testing.assert_close(self.step(*batch), self.by_hand(*batch))
        torch.testing.assert_close(self.model.state_dict(), self.twin.state_dict())


@pytest.fixture(params=["practice", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """A CUDA device: the practice GPU, whose graphs record and replay operators, and a real one."""
    if request.param == "gpu":
        yield "cuda"
    else:
        with practice_gpu(force=True):
            yield "cuda"


CHANGES = {
    "rate": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.5),
    "another tensor as rate": lambda model, optimizer: optimizer.param_groups[0].update(
        lr=torch.tensor(0.5, device="cuda")
    ),
    "mode of a layer": lambda model, optimizer: model.layers[0].eval(),
    "frozen parameter": lambda model, optimizer: next(model.parameters()).requires_grad_(False),
    "optimizer's state loaded": lambda model, optimizer: optimizer.load_state_dict(
        copy.deepcopy(optimizer.state_dict())
    ),
    "optimizer's state cleared": lambda model, optimizer: optimizer.load_state_dict(
        {"state": {}, "param_groups": optimizer.state_dict()["param_groups"]}
    ),
    "weight's data": lambda model, optimizer: setattr(
        model.layers[0].weight, "data", torch.ones_like(model.layers[0].weight)
    ),
    "weights loaded": lambda model, optimizer: model.load_state_dict(
        {name: 2 * value for name, value in model.state_dict().items()}
    ),
    "another group": lambda model, optimizer: optimizer.add_param_group(
        {"params": [nn.Parameter(torch.ones(1, device="cuda"))]}
    ),
}


class TestGraph:
    @pytest.mark.parametrize("amp", [None, "bf16", "fp16"])
    def test_the_weights_are_those_of_the_same_steps_by_hand(self, device, amp):
        steps = Steps(device, amp=amp)
        steps.go(0, 13)
        assert not steps.step.why_plain
        assert (steps.step.plain, steps.step.replayed) == (4, 9)  # three to warm up, and the short batch

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_sgd(self, device, momentum):
        steps = Steps(device, lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum))
        steps.go(0, 13)
        assert steps.step.replayed == 9

    def test_float16_leaves_out_steps_that_overflow_and_learns_a_scale(self, device):
        steps = Steps(device, amp="fp16", model=nn.Linear(6, 4).to(device))
        with torch.no_grad():
            steps.batches[6][0].mul_(1e4)  # a replayed step whose gradient overflows
        steps.go(0, 12)
        scaler = steps.step._step.scaler
        assert scaler.get_scale() == steps.scaler.get_scale() < 65536

    def test_short_batches_do_not_use_up_the_warm_up(self, device):
        steps = Steps(device)
        inputs, targets = steps.batches[0]
        for size in (5, 3, 2, 8, 8, 8, 8, 8):
            steps.step(inputs[:size], targets[:size])
        assert (steps.step.plain, steps.step.replayed) == (6, 2)

    def test_a_rate_that_is_a_tensor_is_read_in_each_step(self, device):
        def make(parameters):
            return torch.optim.Adam(parameters, **{**ADAM, "lr": torch.tensor(0.01, device=device)})

        steps = Steps(device, make)
        schedules = [
            torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (steps.optimizer, steps.others)
        ]
        for number in range(12):
            steps.go(number, number + 1)
            for schedule in schedules:
                schedule.step()
        assert (steps.step.plain, steps.step.replayed) == (3, 9)  # captured once

    @pytest.mark.parametrize("fused", [True, False])
    def test_a_rate_that_is_a_tensor_on_the_cpu_is_built_in(self, device, fused):
        """Also where it changes in place, as a schedule changes it."""

        def make(parameters):
            options = {"lr": torch.tensor(0.05), "fused": fused, "capturable": True}
            return torch.optim.Adam(parameters, **options)

        steps = Steps(device, make)
        steps.go(0, 6)
        for each in (steps.optimizer, steps.others):
            each.param_groups[0]["lr"].fill_(0.001)
        steps.go(6, 12)
        assert (steps.step.plain, steps.step.replayed) == (4, 8)

    def test_sgd_with_such_a_rate(self, device):
        rate = lambda: torch.tensor(0.1, device=device)  # noqa: E731
        steps = Steps(device, lambda p: torch.optim.SGD(p, lr=rate(), fused=True))
        steps.go(0, 6)
        for each in (steps.optimizer, steps.others):
            each.param_groups[0]["lr"].fill_(0.0)
        steps.go(6, 12)
        assert (steps.step.plain, steps.step.replayed) == (3, 9)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_what_a_graph_has_built_in_is_captured_anew_when_it_changes(self, device, change):
        steps = Steps(device)
        steps.go(0, 6)
        change(steps.model, steps.optimizer)
        change(steps.twin, steps.others)
        steps.go(6, 12)
        in_place = change is CHANGES["weights loaded"]  # the graph reads what is there
        assert (steps.step.plain, steps.step.replayed) == ((3, 9) if in_place else (4, 8))

    def test_later_steps_leave_the_losses_alone(self, device):
        steps = Steps(device)
        losses = [steps.step(*batch) for batch in steps.batches]
        assert steps.step.replayed == 9
        torch.testing.assert_close(losses, [steps.by_hand(*batch) for batch in steps.batches])

    def test_the_example_batch_is_not_written_to(self, device):
        steps = Steps(device)
        before = [part.clone() for part in steps.batches[0]]
        steps.go(1, 6)
        assert all(torch.equal(*pair) for pair in zip(before, steps.batches[0], strict=True))

    def test_other_weights_of_the_loss_are_captured_anew(self, device):
        model, inputs, targets = task(device, 8)
        loss_fn = nn.CrossEntropyLoss(weight=torch.ones(4, device=device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        step = captured_step(model, loss_fn, optimizer, inputs, targets)
        for _ in range(5):
            step(inputs, targets)
        loss_fn.weight = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
        losses = [step(inputs, targets) for _ in range(2)]
        torch.testing.assert_close(losses, [loss_fn(model(inputs), targets).detach()] * 2)
        assert (step.plain, step.replayed) == (4, 3)

    def test_what_cannot_be_seen_is_captured_anew_when_asked_for(self, device):
        generators = [torch.Generator(device).manual_seed(1) for _ in range(2)]
        models = [Noisy(generator).to(device) for generator in generators]
        models[1].load_state_dict(models[0].state_dict())
        _, inputs, targets = task(device, 8)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        step = captured_step(
            models[0], F.cross_entropy, optimizers[0], inputs, targets, generators=generators[:1]
        )
        for number in range(10):
            if number == 5:
                models[0].factor = models[1].factor = 0.5
                step.recapture()
            by_hand(models[1], [(inputs, targets)], optimizers[1])
            step(inputs, targets)
            torch.testing.assert_close(models[0].state_dict(), models[1].state_dict())
        assert (step.plain, step.replayed) == (4, 6)

    def test_dropout_draws_anew_in_each_step(self, device):
        _, inputs, targets = task(device, 8)
        model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        step = captured_step(model, F.cross_entropy, optimizer, inputs, targets)
        losses = [step(inputs, targets).item() for _ in range(8)]
        assert step.replayed == 5 and len(set(losses)) == 8

    def test_pinned_batches_do_not_wait(self, device):
        steps = Steps("cuda")
        batches = [tuple(part.cpu().pin_memory() for part in batch) for batch in steps.batches]
        for batch in batches[:5]:
            steps.step(*batch)
        torch.cuda.set_sync_debug_mode("error")
        try:
            steps.step(*batches[5])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        assert steps.step.replayed == 3

    def test_no_replay_waits(self, device):
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

    def test_a_failed_capture_leaves_no_graph(self, device):
        """A model that reads a value back cannot be captured: CUDA's error, and again at the next call."""

        class Reading(nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs) * (1 if inputs.sum().item() > 1e9 else 2)

        _, inputs, targets = task("cuda", 8)
        model = Reading(6, 4).to("cuda")
        step = captured_step(
            model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), inputs, targets
        )
        for _ in range(3):
            step(inputs, targets)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="captur"):
                step(inputs, targets)
        assert step.replayed == 0
