"""What other libraries' training loops cost beside `fit`: same model, same batches, same final weights.

    python benchmarks/peers.py [--pairs 100]

All train the 784-128-64-10 network at batch 64 with fused Adam, on one thread, without progress bars,
loggers, validation or checkpoints: once on batches of tensors that live on the device, once fed by a
DataLoader of tensors in host memory. Each takes turns with `fit`, as in overhead.py; what is timed are the
steps, not the start. The peers come with the dependency group `bench`.
"""

from __future__ import annotations

import logging
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpulesson.data import load_fashion_mnist
from gpulesson.training import fit
from measuring import SPREAD, Result, about, network, options, same_weights, spread
from plain_loops import by_hand, loss_fn
from turns import STEPS, Feed, loaded, ratios, resident, steady

ROUNDS = 10  # of pairs
Loop = Callable[[Any], object]  # takes the batches
Make = Callable[[nn.Module, torch.optim.Optimizer, torch.device], Loop]


def ours(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    return lambda batches: fit(model, batches, loss_fn, optimizer, device, epochs=1)


def hand(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    return lambda batches: by_hand(model, batches, optimizer, device)


def fabric(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    from lightning.fabric import Fabric

    runner = Fabric(accelerator=device.type, devices=1)
    wrapped, stepper = runner.setup(model, optimizer)

    def loop(batches: Any) -> None:
        losses = []
        wrapped.train()
        for inputs, targets in batches:
            inputs, targets = runner.to_device((inputs, targets))
            stepper.zero_grad()
            loss = loss_fn(wrapped(inputs), targets)
            runner.backward(loss)
            stepper.step()
            losses.append(loss.detach())

    return loop


def lightning_trainer(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            inputs, targets = batch
            return loss_fn(self.model(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator=device.type,
        devices=1,
        barebones=True,  # Lightning's own switch: no logger, checkpoints, progress bar, checks
    )
    return lambda batches: trainer.fit(Module(), train_dataloaders=batches)


def ignite(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    from ignite.engine import create_supervised_trainer

    engine = create_supervised_trainer(
        model, optimizer, loss_fn, device=device, output_transform=lambda x, y, y_pred, loss: loss.detach()
    )
    return lambda batches: engine.run(batches, max_epochs=1)


def skorch(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    from skorch import NeuralNet

    def loop(batches: Any) -> None:
        net = NeuralNet(
            model,
            criterion=type(loss_fn),
            optimizer=lambda parameters, **_: optimizer,
            max_epochs=1,
            train_split=None,
            iterator_train=lambda dataset, **_: batches,
            callbacks__print_log=None,
            device=device,
            verbose=0,
        )
        net.fit(*batches.data)  # which it gives to its iterator, ours

    return loop


def accelerate(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    from accelerate import Accelerator

    runner = Accelerator(cpu=device.type == "cpu")
    wrapped, stepper = runner.prepare(model, optimizer)

    def loop(batches: Any) -> None:
        losses = []
        wrapped.train()
        for inputs, targets in batches:
            stepper.zero_grad()
            loss = loss_fn(wrapped(inputs.to(runner.device)), targets.to(runner.device))
            runner.backward(loss)
            stepper.step()
            losses.append(loss.detach())

    return loop


def fastai(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Loop:
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper

    class Loaders(list):  # what a Learner asks of its data
        train = property(lambda self: self[0])
        valid = property(lambda self: self[1])
        n_inp = 1

    def loop(batches: Any) -> None:
        loaders = Loaders([batches, []])
        loaders.device = device
        rate = optimizer.param_groups[0]["lr"]
        learner = Learner(
            loaders,
            model,
            loss_func=loss_fn,
            opt_func=lambda parameters, **_: OptimWrapper(opt=optimizer),
            lr=rate,
            moms=None,
        )
        learner.logger = lambda _: None
        learner.fit(1)

    return loop


PEERS: dict[str, tuple[Make, str]] = {  # and the package that it comes in
    "a loop by hand": (hand, ""),
    "Lightning Fabric": (fabric, "lightning"),
    "ignite": (ignite, "pytorch-ignite"),
    "skorch": (skorch, "skorch"),
    "accelerate": (accelerate, "accelerate"),
    "Lightning Trainer": (lightning_trainer, "lightning"),
    "fastai": (fastai, "fastai"),
}


def compare(make: Make, feed: Callable[[], Feed], device: torch.device, pairs: int) -> list[float]:
    """Return the ratios of a peer's time to that of `fit`; refuse one that did other work.

    In some rounds, each with its own networks, and in turn with `fit` first or second: where a network's
    memory lies makes a difference, and which of the two was there first.
    """
    found: list[float] = []
    rounds = min(ROUNDS, pairs)
    for number in range(rounds):
        models = [network(device) for _ in range(2)]
        optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True) for model in models]
        first = ours(models[0], optimizers[0], device)
        second = make(models[1], optimizers[1], device)
        found += ratios(first, second, feed, pairs=pairs // rounds, swapped=number % 2 == 1)
        if not same_weights(*models):
            raise SystemExit(f"{make.__name__} ended with other weights: not the same work")
    return found


def main() -> None:
    """Measure, print, write."""
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    chosen = options(__doc__, "peers", pairs=100)
    torch.set_num_threads(1)
    device, data = chosen.device, load_fashion_mnist()
    images, targets = data.train_images.float() / 255, data.train_targets
    feeds = {"": resident(images.to(device), targets.to(device)), ", DataLoader": loaded(images, targets)}
    found = {
        name + how: compare(make, feed, device, chosen.pairs)
        for name, (make, _) in PEERS.items()
        for how, feed in feeds.items()
    }
    control = compare(ours, feeds[""], device, chosen.pairs)
    libraries = sorted({package for _, package in PEERS.values() if package})
    result = Result(
        "peers",
        "Time of a training step of other libraries' loops, against `fit`",
        about(device, *libraries, data=data.source, pairs=chosen.pairs, steps_a_turn=STEPS),
        [("what", "ratio of times, to fit", ""), *SPREAD],
        [{"what": what, **spread(v)} for what, v in {**found, "control: fit": control}.items()],
        notes=["All ended with the same weights as `fit`, bit for bit."],
    )
    peers = {name: statistics.median(v) for name, v in found.items() if not name.startswith("a loop by hand")}
    for name, value in peers.items():
        result.claim(f"time of a step, {name} / `fit`", value, ".2f", ">", 1)
    result.claim("the control beside it, `fit` / `fit`", statistics.median(control), ".3f")
    if not steady(control):
        result.notes.append("Inconclusive: the control is outside 0.99 to 1.01, so the machine was too busy.")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
