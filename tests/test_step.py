"""What a `Step` adds to a training step, against the same written by hand."""

from __future__ import annotations

import pytest
import torch
from test_training import task
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau

import gpulesson
from gpulesson.checkpoint import AutoSave
from gpulesson.data import Batches
from gpulesson.models import MLP
from gpulesson.step import Step
from gpulesson.training import NonFiniteLossError, fit, train_epoch


def test_a_scheduler_may_be_stepped_after_each_step():
    model, inputs, targets = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rates = []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates.append(step) or 0.5**step)
    batches = Batches(inputs, targets, batch_size=32)  # four a pass, the last one short
    fit(model, batches, F.cross_entropy, optimizer, "cpu", 2, step=Step(optimizer, scheduler=schedule))
    assert rates == list(range(9))
    step = Step(optimizer, scheduler=schedule, accumulate=3)
    fit(model, batches, F.cross_entropy, optimizer, "cpu", 1, step=step)
    assert rates == list(range(11))  # a step after three batches, and one at the end


@pytest.mark.parametrize("amp", [None, "fp16"])
def test_accumulated_batches_are_as_one_batch_of_their_samples(amp):
    """100 samples by 32 are 32, 32, 32, 4: with three a step, 96 and 4, also where the sizes differ."""
    (model, inputs, targets), (twin, _, _) = task(), task()
    loss_fn = nn.CrossEntropyLoss()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, twin)]
    batches = Batches(inputs, targets, batch_size=32)
    step = Step(optimizers[0], accumulate=3, amp=amp)
    loss = fit(model, batches, loss_fn, optimizers[0], "cpu", 1, step=step).train_loss[0]
    means = []
    for part in (slice(96), slice(96, 100)):
        optimizers[1].zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=amp is not None):
            value = loss_fn(twin(inputs[part]), targets[part])
        value.backward()
        optimizers[1].step()
        means.append(value.item() * len(inputs[part]))
    close = {"rtol": 1e-5, "atol": 1e-7} if amp is None else {"rtol": 0, "atol": 2e-5}
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, **close)
    assert loss == pytest.approx(sum(means) / 100, rel=1e-5 if amp is None else 1e-2)


def test_a_pass_that_was_interrupted_leaves_nothing_to_the_next():
    (model, inputs, targets), (twin, _, _) = task(), task()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, twin)]
    batches, step = Batches(inputs, targets, batch_size=25), Step(optimizers[0])
    handle = model.layers[0].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_epoch(model, batches, F.cross_entropy, optimizers[0], "cpu", step=step)
    handle.remove()
    train_epoch(model, batches, F.cross_entropy, optimizers[0], "cpu", step=step)
    train_epoch(twin, batches, F.cross_entropy, optimizers[1], "cpu")
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("when", ["backward", "step"])
def test_a_step_that_was_interrupted_leaves_nothing_to_the_next(when):
    (model, inputs, targets), (twin, _, _) = task(), task()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, twin)]
    steps = [Step(optimizer) for optimizer in optimizers]

    def interrupt(*_):
        raise KeyboardInterrupt

    hooks = {"backward": model.layers[0].weight.register_hook, "step": optimizers[0].register_step_pre_hook}
    handle = hooks[when](interrupt)
    with pytest.raises(KeyboardInterrupt):
        steps[0](F.cross_entropy(model(inputs), targets))
    handle.remove()
    for _ in range(2):
        for each, step in zip((model, twin), steps, strict=True):
            step(F.cross_entropy(each(inputs), targets))
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_two_schedules_and_one_place_to_save_them_are_refused(tmp_path):
    model, inputs, targets = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedules = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
    step, parts = Step(optimizer, scheduler=schedules[1]), {"model": model, "optimizer": optimizer}
    options = {"scheduler": schedules[0], "step": step}
    with (
        AutoSave(tmp_path, scheduler=schedules[0], **parts) as saves,
        pytest.raises(ValueError, match="have a schedule, and autosave saves only one"),
    ):
        fit(model, [(inputs, targets)], F.cross_entropy, optimizer, "cpu", 1, autosave=saves, **options)


def test_batches_of_unequal_sizes_weigh_by_their_samples():
    (model, inputs, targets), (twin, _, _) = task(), task()
    parts = [slice(10), slice(10, 70), slice(70, 100)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, twin)]
    unequal = [(inputs[part], targets[part]) for part in parts]
    fit(model, unequal, F.cross_entropy, optimizers[0], "cpu", 1, step=Step(optimizers[0], accumulate=3))
    fit(twin, [(inputs, targets)], F.cross_entropy, optimizers[1], "cpu", 1)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("amp", [None, "fp16"])
def test_gradients_are_clipped_to_a_norm(amp):
    """With SGD and a rate of 1 the weights move by the clipped gradient: by exactly that norm."""
    model, inputs, targets = task()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = Step(optimizer, clip_norm=0.01, amp=amp)
    fit(model, [(inputs, targets)], F.cross_entropy, optimizer, "cpu", 1, step=step)
    moved = [new - old for new, old in zip(model.parameters(), before, strict=True)]
    norm = sum(part.square().sum().item() for part in moved) ** 0.5
    assert norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("amp", ["bf16", "bfloat16", torch.bfloat16])
def test_bfloat16_is_autocast_around_model_and_loss(amp):
    model, inputs, targets = task()
    twin, _, _ = task()
    batches = Batches(inputs, targets, batch_size=25)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    history = fit(model, batches, F.cross_entropy, optimizer, "cpu", 2, step=Step(optimizer, amp=amp))
    optimizer, expected = torch.optim.Adam(twin.parameters(), lr=0.01), []
    for inputs, targets in [*batches, *batches]:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(twin(inputs), targets)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert history.train_loss == pytest.approx([sum(expected[:4]) / 4, sum(expected[4:]) / 4], rel=1e-12)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True))


def test_weights_and_optimizer_stay_float32_and_validation_is_in_full_precision():
    seen = []

    class Spy(MLP):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            seen.append((self.training, outputs.dtype))
            return outputs

    torch.manual_seed(0)
    model, (_, inputs, targets) = Spy(6, 16, 4), task()
    optimizer = torch.optim.Adam(model.parameters())
    pair = [(inputs, targets)]
    step = Step(optimizer, amp="bf16")
    fit(model, pair, F.cross_entropy, optimizer, "cpu", 1, validation=pair, step=step)
    assert seen == [(False, torch.float32), (True, torch.bfloat16), (False, torch.float32)]  # a look, first
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in [*model.parameters(), *states]} == {torch.float32}


def test_float16_scales_the_loss_and_skips_steps_that_overflow():
    """Gradients of 1e-9 are zero in float16; scaled they are not. 65536 times a large one overflows."""
    model, inputs = nn.Linear(6, 1, bias=False), torch.ones(4, 6)

    def moved(factor: float) -> float:
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1 / factor)
        loss_fn = lambda outputs, _: outputs.float().mean() * factor  # noqa: E731
        step = Step(optimizer, amp="fp16")
        train_epoch(model, [(inputs, torch.zeros(4))], loss_fn, optimizer, "cpu", step=step)
        return (before - model.weight.detach()).mean().item()

    assert moved(1e-8) == pytest.approx(1, rel=0.1)
    assert moved(100.0) == 0


def test_the_scale_lasts_from_epoch_to_epoch():
    """65536 overflows and is halved, and again: a scaler made anew in each epoch would never train."""
    model, inputs = nn.Linear(6, 1, bias=False), torch.ones(4, 6)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = lambda outputs, _: outputs.float().mean() * 8  # noqa: E731 - 8 / 4 * 65536 is past 65504
    step = Step(optimizer, amp=torch.float16)
    fit(model, [(inputs, torch.zeros(4))], loss_fn, optimizer, "cpu", 6, step=step)
    assert not torch.equal(before, model.weight)


def test_losses_that_are_not_finite_are_found():
    model, inputs, targets = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NonFiniteLossError, match="epoch 1, step 1"):
        step = Step(optimizer, amp="bf16")
        fit(model, [(inputs * torch.nan, targets)], F.cross_entropy, optimizer, "cpu", 1, step=step)


def test_on_the_practice_gpu():
    with gpulesson.practice_gpu(force=True):
        model, inputs, targets = task()
        model = model.to("cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        history = fit(
            model,
            [(inputs, targets)],
            F.cross_entropy,
            optimizer,
            "cuda",
            3,
            step=Step(optimizer, amp="bf16"),
        )
    assert history.train_loss[-1] < history.train_loss[0]


@pytest.mark.gpu
@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_on_a_gpu_no_step_waits(amp, nothing_waits):
    model, inputs, targets = task()
    model = model.to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batches = nothing_waits(Batches(inputs.cuda(), targets.cuda(), batch_size=25))
    step = Step(optimizer, amp=amp)
    losses = [train_epoch(model, batches, F.cross_entropy, optimizer, "cuda", step=step) for _ in range(3)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"accumulate": 0}, "accumulate=0: give the number of batches"),
        ({"accumulate": 1.5}, "accumulate=1.5 .*not a whole number"),
        ({"clip_norm": 0.0}, "clip_norm=0.0: give the largest norm"),
        ({"clip_norm": float("nan")}, "clip_norm=nan"),
        ({"clip_norm": "1"}, "clip_norm is '1', but must be a number above 0"),
        ({"amp": "half"}, r"amp='half' is not a precision of autocast: give torch.bfloat16"),
        ({"amp": True}, "amp=True"),
        ({"amp": torch.float32}, "amp=torch.float32.*None for full precision"),
        ({"scheduler": ReduceLROnPlateau}, "needs the loss of a whole epoch: give it to fit"),
    ],
)
def test_options_that_make_no_sense(option, message):
    optimizer = torch.optim.SGD(MLP(6, 4).parameters(), lr=0.1)
    option = {name: value(optimizer) if isinstance(value, type) else value for name, value in option.items()}
    with pytest.raises((ValueError, TypeError), match=message):
        Step(optimizer, **option)


def test_nothing_waits_to_be_stepped_at_first():
    optimizer = torch.optim.SGD(MLP(6, 4).parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: pytest.fail("it stepped without a batch"))
    Step(optimizer, accumulate=2).finish()
