"""Exercise 14: what is compared with what, against arithmetic of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gpulesson.exercises import check
from gpulesson.exercises import e14_two_gpus as two
from gpulesson.exercises.trace import Printed, Site, Trace

EXAMPLES = Path(__file__).parents[2] / "examples"
STARTER = EXAMPLES / "exercises" / "exercise_14.py"
SOLUTION = EXAMPLES / "solutions" / "solution_14.py"


def starter_until(end: str) -> dict:
    space: dict = {}
    exec(STARTER.read_text().partition(end)[0], space)
    return space


def test_the_check_has_the_data_and_the_model_of_the_starter():
    space = starter_until('model = model.to("cuda")')
    for own, starters in zip(two.data(), space["data"].tensors, strict=True):
        assert torch.equal(own, starters)
    weights = nn.utils.parameters_to_vector(space["model"].parameters()).tolist()
    found = two.model_of(weights).state_dict()
    expected = space["model"].state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (space["EPOCHS"], space["ROWS"], space["BATCH"]) == (two._EPOCHS, two._ROWS, two._BATCH)
    assert two.model_of(weights[:-1]) is None


def alone() -> tuple[nn.Module, list[float]]:
    """Train in one process, in the order that DistributedSampler's documentation names; in float64."""
    space = starter_until('model = model.to("cuda")')
    model, (inputs, labels) = space["model"].double(), space["data"].tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    means = []
    for epoch in range(5):
        order = torch.randperm(320, generator=torch.Generator().manual_seed(epoch))
        losses = []
        for rows in order.split(32):
            loss = nn.functional.cross_entropy(model(inputs[rows].double()), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
    return model, means


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_the_solution_learns_in_two_processes_what_one_learns(tmp_path):
    command = [sys.executable, "-m", "gpulesson", "practice", "--nproc", "2", str(SOLUTION)]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    model, losses = alone()
    assert done.stdout.splitlines() == [
        f"epoch {number}: loss {loss:.4f}" for number, loss in enumerate(losses, 1)
    ]
    state = torch.load(tmp_path / "weights.pt", map_location="cpu")
    for name, expected in model.state_dict().items():
        assert (state[name] - expected).abs().max() < 1e-5


def steps_of(rows: list[list[int]], batch: int) -> list[list[list[int]]]:
    return [[part[at : at + batch] for at in range(0, len(part), batch)] for part in rows]


def test_the_steps_of_two_ranks_taken_in_one_process():
    order = [torch.randperm(320, generator=torch.Generator().manual_seed(n)).tolist() for n in range(5)]
    model, losses = alone()
    started = starter_until('model = model.to("cuda")')["model"]
    first, weights = (nn.utils.parameters_to_vector(each.parameters()).tolist() for each in (started, model))
    halves = [[row for rows in order for row in rows[rank::2]] for rank in range(2)]
    ranks = [{"steps": steps, "first": first, "weights": weights} for steps in steps_of(halves, 16)]
    found = two._alone(ranks)
    assert found.difference < 1e-6
    assert found.losses == pytest.approx(losses, abs=1e-6)
    for number, loss in enumerate(found.losses):
        own = [part[number] for part in found.parts]
        assert sum(own) / 2 == pytest.approx(loss) and abs(own[0] - own[1]) > 1e-3, "they can be told apart"


EPOCHS = [[(row + 7 * epoch) % 320 for row in range(320)] for epoch in range(5)]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[row for rows in EPOCHS for row in rows[rank::2]] for rank in (0, 1)], None),
        ([[row for rows in EPOCHS for row in rows[half]] for half in (slice(160), slice(160, 320))], None),
        ([[row for rows in EPOCHS for row in rows]] * 2, two.NOT_SPLIT),
        ([[row for rows in EPOCHS for row in rows[:160]]] * 2, two.PARTS_OVERLAP),
        ([[row for _ in range(5) for row in EPOCHS[0][rank::2]] for rank in (0, 1)], two.SAME_ORDER),
        ([[row for rows in EPOCHS[:4] for row in rows[rank::2]] for rank in (0, 1)], two.OTHER_ROWS),
        ([[row for rows in EPOCHS for row in rows[:100]], EPOCHS[0] * 3], two.OTHER_ROWS),
        ([[-1] * 800] * 2, two.OTHER_ROWS),
        ([[], []], two.OTHER_ROWS),
        ([[1, 2], [3]], two.OTHER_ROWS),
    ],
)  # fmt: skip
def test_who_takes_which_rows(parts, expected):
    found = two._of_the_rows(parts)
    assert (found and found[0]) == expected


def facts(**others) -> dict:
    order = [row for rows in EPOCHS for row in rows]
    halves = {"first": [0.0, 1.0], "weights": [1.0, 2.0], "rate": 0.5}
    return {"device": "cuda:0", "steps": steps_of([order[::2]], 16)[0], **halves, **others}


SECOND = steps_of([[row for rows in EPOCHS for row in rows][1::2]], 16)[0]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, None),
        ({"device": "cuda:0"}, two.SAME_GPU),
        ({"device": "cpu"}, two.LEFT_THE_GPU),
        ({"weights": [1.0, 2.1]}, two.NOT_AVERAGED),
        ({"first": [0.0, 1.1]}, two.NOT_AVERAGED),
        ({"weights": [1.0, float("nan")]}, two.NOT_AVERAGED),
        ({"weights": [1.0]}, two.NOT_AVERAGED),
        ({"steps": [[row for step in SECOND for row in step]]}, two.BATCH_NOT_DIVIDED),
    ],
)
def test_what_two_ranks_have_to_have_in_common(others, expected):
    second = {**facts(device="cuda:1", steps=SECOND), **others}
    found = two._fault([facts(), second])
    assert (found and found[0]) == expected


def test_another_rate():
    found = two._fault([facts(rate=1.0), facts(rate=1.0, device="cuda:1", steps=SECOND)])
    assert found[0] == two.RATE_CHANGED and "1; expected 0.5" in found[2]


@pytest.mark.parametrize(
    ("texts", "tells"),
    [
        (["loss 0.6862", "loss 0.5000"], True),
        (["loss 0.6862, rate 0.500, 0.3 s", "a line", "loss 0.500"], True),
        (["0.68625 0.50000"], False),
        (["loss 0.5000", "loss 0.6862"], False),
        (["loss 0.6864", "loss 0.5000"], False),
        (["loss 0.69", "loss 0.50"], False),
        ([], False),
    ],
)
def test_losses_that_were_printed(texts, tells):
    lines = [Printed(Site("a.py", 1), text, 0) for text in texts]
    assert two._tells(lines, [0.68623, 0.5]) == tells


@pytest.mark.slow
def test_one_process_that_trains_alone_is_no_evidence(tmp_path, warm):
    text = STARTER.read_text().replace("import torch\n", "import os\nimport torch\n", 1)
    text = text.replace(
        "EPOCHS, ROWS", 'if os.environ["RANK"] != "0":\n    raise SystemExit\nEPOCHS, ROWS', 1
    )
    file = tmp_path / "14_mine.py"
    file.write_text(text)
    assert [finding.kind for finding in check(file, warm=warm).findings] == ["not-trained"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ('"weights.pt"', '"other.pt"', "saved-otherwise"),
        ("model.module.state_dict()", "{'model': model.module.state_dict()}", "saved-otherwise"),
        ("nn.Linear(8, 32), nn.ReLU()", "nn.Linear(8, 32), nn.Tanh()", "other-weights"),
        ("nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)", "nn.Linear(8, 2)", "other-weights"),
        ('print(f"epoch {epoch + 1}: loss {total.item() / ROWS:.4f}")', "pass", "no-loss-printed"),
        ("ROWS, BATCH = 5", "ROWS, BATCH = 4", "other-rows"),
    ],
)
def test_other_changes_of_the_solution(old, new, kind, tmp_path, warm):
    text = SOLUTION.read_text()
    assert text.count(old) == 1
    file = tmp_path / "14_mine.py"
    file.write_text(text.replace(old, new))
    assert kind in [finding.kind for finding in check(file, warm=warm).findings]


def test_a_rank_that_trained_nothing_is_missed():
    from gpulesson.exercises.findings import Source

    source = Source("14_mine.py", [])
    for ranks in ([], [Trace(), Trace()]):
        (finding,) = two.shared(Trace(ranks=ranks), source)
        assert finding.kind == "not-trained"
