"""What `fit` costs in time over a loop written by hand, for each way of feeding it.

    python benchmarks/overhead.py [--pairs 300] [--rounds 20]

Both train the same network with the same batches in the same order, on one thread. They take turns of
twenty steps, A B B A; each four give one ratio. A loop by hand against itself, in every other round, is the
control: where its median leaves 0.99 to 1.01, the result is inconclusive. At the end of a round the weights
must be the same bit for bit.

Batches, a list and a DataLoader feed the 784-128-64-10 network at batch 64, with fused Adam. The rows with
one batch an epoch have lesson 3's flowers and network (120, and 4-8-9-3), with Adam; with validation, 30
flowers are evaluated after each epoch. There a step takes so little time that the work of an epoch shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson.data import load_fashion_mnist, load_iris
from gpulesson.models import MLP
from gpulesson.training import fit
from measuring import SPREAD, Result, about, network, options, same_weights, spread
from plain_loops import by_hand, evaluated, loss_fn
from turns import STEPS, Feed, listed, loaded, ratios, resident, steady


@dataclass(frozen=True)
class Case:
    """One way of feeding: the network, its optimizer, the batches, and the ratio to stay under."""

    feed: Callable[[], Feed]
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]
    most: float
    per_pass: int = 0
    validation: tuple[tuple[Tensor, Tensor], ...] | None = None


def cases(device: torch.device) -> dict[str, Case]:
    """Return the ways of feeding, by name."""
    data, iris = load_fashion_mnist(), load_iris()
    images = (data.train_images.float().to(device) / 255, data.train_targets.to(device))
    order = torch.randperm(len(iris.targets), generator=torch.Generator().manual_seed(0))
    features, species = iris.features[order].to(device), iris.targets[order].to(device)
    flowers, held_out = (features[:120], species[:120]), ((features[120:], species[120:]),)

    def large() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network(device)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def small() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = MLP(4, 8, 9, 3).to(device)
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    one_batch = listed(*flowers, batch_size=120)
    return {
        "Batches": Case(resident(*images), large, 1.01),
        "a list": Case(listed(*images), large, 1.02),
        "a DataLoader": Case(loaded(*images), large, 1.01),
        "one batch an epoch": Case(one_batch, small, 1.10, per_pass=1),
        "one batch an epoch, with validation": Case(one_batch, small, 1.30, per_pass=1, validation=held_out),
    }


def measure(case: Case, device: torch.device, pairs: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the ratios of `fit` to a loop by hand, and those of the loop to itself."""
    trained: list[nn.Module] = []

    def make(with_fit: bool) -> Callable[[Any], object]:
        model, optimizer = case.make()
        trained.append(model)

        def ours(batches: Any) -> None:
            epochs = batches.number_of_passes
            fit(model, batches, loss_fn, optimizer, device, epochs, validation=case.validation)

        def theirs(batches: Any) -> None:
            for _ in range(batches.number_of_passes):
                by_hand(model, batches, optimizer, device)
                if case.validation is not None:
                    evaluated(model, case.validation, device)

        return ours if with_fit else theirs

    found: tuple[list[float], list[float]] = [], []
    more: dict[str, Any] = {"pairs": pairs // rounds, "per_pass": case.per_pass}
    for number in range(rounds):  # where a network's memory lies makes a difference
        for with_fit, values in zip((True, False), found, strict=True):
            values += ratios(make(False), make(with_fit), case.feed, swapped=number % 2 == 1, **more)
    assert all(same_weights(trained[0], model) for model in trained[1:]), "not the same work"
    return found


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "overhead", pairs=300, rounds=20)
    torch.set_num_threads(1)
    device = chosen.device
    sizes = chosen.pairs, chosen.rounds
    found = {name: (case, *measure(case, device, *sizes)) for name, case in cases(device).items()}
    rows = []
    for name, (_, ours, control) in found.items():
        rows += [{"what": name, **spread(ours)}, {"what": "control: by hand / by hand", **spread(control)}]
    result = Result(
        "overhead",
        "Time of a training step: `fit` against a loop written by hand",
        about(device, data=load_fashion_mnist().source, pairs=chosen.pairs, steps_a_turn=STEPS),
        [("what", "ratio of times, fed by", ""), *SPREAD],
        rows,
        notes=["In each row both ended with the same weights, bit for bit."],
    )
    for name, (case, ours, control) in found.items():
        result.claim(
            f"time of a step, `fit` / by hand: {name}", statistics.median(ours), ".3f", "<=", case.most
        )
        if not steady(control):
            middle = f"{statistics.median(control):.3f}"
            result.notes.append(f"Inconclusive: the control of {name!r} is {middle}, outside 0.99 to 1.01.")
    controls = [statistics.median(control) for _, _, control in found.values()]
    furthest = max(controls, key=lambda ratio: abs(ratio - 1))
    result.claim("the control furthest from 1, by hand / by hand", furthest, ".3f")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
