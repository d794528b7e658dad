"""What `fit` costs in time over a loop written by hand.

    python benchmarks/overhead.py [--pairs 150]

Both train the 784-128-64-10 network at batch 64 with fused Adam, on the same batches in the same order, on
one thread. They take turns of twenty steps, A B B A; each four give one ratio. A loop by hand against itself,
in every other round, is the control: where its median leaves 0.99 to 1.01, the result is inconclusive. At the
end of a round the weights must be the same bit for bit.
"""

from __future__ import annotations

import statistics

import torch

from gpulesson.training import fit
from measuring import SPREAD, Result, about, fashion, network, options, same_weights, spread
from plain_loops import by_hand, loss_fn
from turns import STEPS, ratios, steady

ROUNDS = 5  # of pairs, and of the control's


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "overhead", pairs=150)
    torch.set_num_threads(1)
    device, data = chosen.device, fashion()
    resident = (data.train_images.float().to(device) / 255, data.train_targets.to(device))
    trained = []

    def make(with_fit: bool):
        model = network(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        trained.append(model)
        if with_fit:
            return lambda batches: fit(model, batches, loss_fn, optimizer, device, 1, progress=False)
        return lambda batches: by_hand(model, batches, optimizer, device)

    found: dict[str, list[float]] = {"fit / by hand": [], "control: by hand / by hand": []}
    for _ in range(ROUNDS):
        for with_fit, values in zip((True, False), found.values(), strict=True):
            values += ratios(make(False), make(with_fit), resident, pairs=chosen.pairs // ROUNDS)
    assert all(same_weights(trained[0], model) for model in trained[1:]), "not the same work"
    ours, control = found.values()
    result = Result(
        "overhead",
        "Time of a training step: `fit` against a loop written by hand",
        about(device, data=data.source, pairs=chosen.pairs, steps_a_turn=STEPS),
        [("what", "ratio of times", ""), *SPREAD],
        [{"what": what, **spread(values)} for what, values in found.items()],
        notes=["Both ended with the same weights, bit for bit."],
    )
    result.claim("time of a step, `fit` / by hand", statistics.median(ours), ".3f", "<=", 1.01)
    result.claim("the control beside it, by hand / by hand", statistics.median(control), ".3f")
    if not steady(control):
        result.notes.append("Inconclusive: the control is outside 0.99 to 1.01, so the machine was too busy.")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
