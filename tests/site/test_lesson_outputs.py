"""What the lessons print on their pages, against independent arithmetic."""

from __future__ import annotations

import math
import re
from itertools import pairwise, product

import pytest
import torch
from pages import GUIDES, LESSONS, ROOT, Site, page_name
from processes import run_script


def printed(site: Site, number: str) -> str:
    (lesson,) = [script for script in LESSONS if script.name.startswith(number)]
    return f"{site.page(page_name(lesson)).printed()}\n"


@pytest.mark.slow
def test_lesson_10_meets_its_predictions(site):
    """The sizes are added up here once more, from the layers that the page names."""
    said = printed(site, "10")
    rows = re.findall(r"^(\w[\w ]*\w) +([\d,]+) +([\d,]+)$", said, re.M)
    ledger = {name: (int(a.replace(",", "")), int(b.replace(",", ""))) for name, a, b in rows}
    layers = [(784, 256), (256, 256), (256, 256), (256, 10)]
    parameters = sum(4 * a * b + -(-4 * b // 512) * 512 for a, b in layers)
    activations = 128 * (3 * 256 + 10) * 4 + 512 + 512
    sizes = {"parameters": parameters, "activations": activations, "gradients": parameters}
    sizes |= {"optimizer state": 2 * parameters, "batch": 128 * (4 * 784 + 8)}
    assert ledger == {name: (size, size) for name, size in sizes.items()}
    peaks = re.findall(r"(\d+) rows: the peak is in the part '(\w+)'", said)
    assert peaks == [("128", "optimizer"), ("2048", "backward")]
    hidden = 128 * 256 * 4  # the result of a hidden layer: four of them at the peak, or two
    for name, results in (("as in training", 4), ("no_grad", 2), ("inference_mode", 2)):
        assert re.search(rf"^{name} +{results * hidden:,} bytes more", said, re.M), said
    for name, nbytes in (("loss", activations), ("loss.detach()", 512), ("loss.item()", 0)):
        assert re.search(rf"^{re.escape(name)} +{nbytes:,} bytes a loss$", said, re.M), said
    for name, nbytes in (("Adam", parameters), ("Adam, fused", 0)):
        assert re.search(rf"^{name} +needs +{nbytes:,} bytes for a moment$", said, re.M), said
    # three segments, of each half is kept; one that grows by 20 MiB has 30 + 45 + 90 MiB, and a rest
    full, (fits,) = (
        re.findall(rf"^expandable {way}: {first}$((?:\n  .*)+)", said, re.M)
        for way, first in (("False", r"CUDA out of memory\."), ("True", "all four fit"))
    )
    assert "Tried to allocate 90.00 MiB." in full[0] and f"  {30 + 50 + 70} MiB reserved" in full[0]
    assert "75.00 MiB is allocated by PyTorch, and 75.00 MiB is reserved" in full[0]
    assert re.search(r"(\d+) MiB reserved", fits)[1] == "180"
    stopped, went_on = re.findall(r"^(\d+) losses\n(.*)$", said, re.M)
    # it had a little more: what a first backward pass has left free
    assert 0 <= int(stopped[0]) - 32 * 2**20 // activations <= 2 + parameters // activations
    assert stopped[1] == "CUDA out of memory." and went_on == ("100", "no error")


@pytest.mark.slow
def test_lesson_13_shows_what_each_way_saves(site):
    said = printed(site, "13")

    def numbers(pattern):
        return [float(number) for number in re.search(pattern, said).groups()]

    # 4,096 rows of 64 numbers; three results a block and one before them; the peak has a few more
    result, blocks = 4096 * 64 * 4 / 2**20, 12
    (before,), (caught,) = numbers(r"before: +([\d.]+) MiB"), numbers(r"in except: +([\d.]+) MiB")
    (allowed,) = numbers(r"([\d.]+) MiB allowed;")
    assert numbers(r"after except: +([\d.]+) MiB") == [before] and before < 14 < 36 < caught <= allowed < 39
    (large,), (small,) = numbers(r"4,096 at once: +([\d.]+) MiB"), numbers(r"4 times 1,024: +([\d.]+) MiB")
    assert (3 * blocks + 1) * result < large < (3 * blocks + 3) * result
    assert abs(small - large / 4) < 1
    # what fills the memory of a model that is narrow, and of one that is wide
    share = r"parameters ([\d.]+), gradients ([\d.]+), optimizer state ([\d.]+), the rest ([\d.]+)"
    for name, depth, width in (("narrow", 12, 64), ("wide", 2, 1024)):
        count = 785 * width + 2 * depth * (width + 1) * width + (width + 1) * 10
        parameters, gradients, state, rest = numbers(f"{name}: {share}")
        assert parameters == gradients == pytest.approx(4 * count / 2**20, abs=0.06)
        assert state == pytest.approx(2 * parameters, abs=0.1)
        assert (rest > 10 * parameters) == (name == "narrow") and (rest < state) == (name == "wide")
    # an epoch of ten batches in groups of four, and one of three large batches
    assert re.findall(r"^ ?(\d+) batches, learning rate now ([\d.]+)$", said, re.M) == [
        ("10", "0.125"),
        ("3", "0.125"),
    ]
    assert numbers(r"largest difference of a weight: (\S+)\n")[0] < 1e-12
    parted, alone = (numbers(rf"{norm} +largest .*: (\S+)\n")[0] for norm in ("BatchNorm1d", "group_norm"))
    assert alone < 1e-12 < 1e-4 < parted
    (whole,) = numbers(r"all rows at once: +([\d.]+)\n")
    assert numbers(r"sums, by the counted: +([\d.]+)\n")[0] == pytest.approx(whole, abs=2e-4)
    assert "mean of the four means: nan\n" in said
    # two FLOP forward for each weight and row, four backward; recomputing, two once more
    again = 2 * blocks * 2 * 64 * 64 * 4096 / 1e9
    kept, work = numbers(r"Net +([\d.]+) MiB, +([\d.]+) GFLOP")
    less, more = numbers(r"Recomputing +([\d.]+) MiB, +([\d.]+) GFLOP")
    assert kept == large and abs(less - (blocks + 4) * result) < 1 and abs(more - work - again) < 0.02
    assert 1.2 < more / work < 4 / 3
    assert "one batch, counted by BatchNorm1d: 2\n" in said
    (full,), (fewer,) = numbers(r"float32: +([\d.]+) MiB"), numbers(r"autocast: +([\d.]+) MiB")
    assert 0.55 * full < fewer < 0.75 * full  # half, and a copy of the images
    assert re.search(r"^torch.float32 1\.1\d*\ntorch.bfloat16 1\.0$", said, re.M)
    assert numbers(r"on the GPU: +([\d.]+) MiB") == [large]
    assert numbers(r"offloaded: +([\d.]+) MiB")[0] < large / 2
    states = [numbers(rf"{name} +([\d.]+) MiB\n")[0] for name in ("AdamW", "Adafactor", "SGD")]
    assert states[0] > 38 and 0 < states[1] < 0.2 and states[2] == 0
    # beside four layers two of 8 numbers a side; the model's own are frozen
    assert "the same results: True\n" in said
    low = 4 * 4 * 2 * 8 * 1024 / 2**20
    found = numbers(r"gradients ([\d.]+) MiB, state ([\d.]+) MiB")
    assert found == pytest.approx([low, 2 * low], abs=0.06)
    assert "a practice GPU has no times\n" in said and "s a step" not in said


@pytest.mark.slow
def test_lesson_14_shows_that_two_learn_what_one_learns(site):
    said = printed(site, "14")
    first, second, mean, batch = (
        float(gradient)
        for gradient in re.findall(r"^(?:rows .*…|their mean|all 64 rows): +(\S+)$", said, re.M)
    )
    assert first != second and mean == batch == pytest.approx((first + second) / 2, abs=1e-6)
    dealt = re.findall(r"^epoch (\d), rank (\d): images \[(.+)\]$", said, re.M)
    for epoch in "01":  # each image once, to one of the two
        images = ", ".join(images for number, _, images in dealt if number == epoch)
        assert sorted(images.split(", ")) == [*"01234567"]
    assert len(dealt) == 4 and len({images for *_, images in dealt}) == 4
    assert re.findall(r"^training on cuda:(\d)$", said, re.M) == ["0", "1"]
    losses = [float(loss) for loss in re.findall(r"^Epoch \[\d/5\], loss (\S+)$", said, re.M)]
    two, one = losses[:5], losses[5:]
    assert two == pytest.approx(one, abs=2e-4) and two == sorted(two, reverse=True)
    (gap,) = re.findall(r"^largest difference of a weight: (\S+)$", said, re.M)
    assert float(gap) < 1e-4
    right, total, share = re.search(r"^(\d+) of (\d+) test images right: (\S+)%$", said, re.M).groups()
    assert total == "200" and float(share) == int(right) / 2 > 40
    (speed,) = re.findall(r"^one process: ([\d,]+) images a second$", said, re.M)
    assert int(speed.replace(",", "")) > 10


@pytest.mark.slow
def test_lesson_15_counts_what_operators_cost(site):
    """FLOP and bytes are counted here once more, and so is a transformer's arithmetic by its products."""
    said, side = printed(site, "15"), 4096
    rows = re.findall(r"^(\w[\w, ]*\w) +(\d+) +(\d+) +([\d.]+)$", said, re.M)
    table = {name: (int(flop), int(megabytes), float(ratio)) for name, flop, megabytes, ratio in rows}
    for batch in (1, 256):
        flop, nbytes = 2 * batch * side**2, 4 * (side**2 + 2 * batch * side)
        assert table[f"linear, batch {batch}"] == (
            round(flop / 1e6),
            round(nbytes / 1e6),
            pytest.approx(flop / nbytes, abs=0.01),
        )
    bandwidth, arithmetic, ridge = (
        float(re.search(rf"^{name} +([\d.]+)", said, re.M)[1])
        for name in ("bandwidth", "arithmetic", "ridge")
    )
    assert ridge == pytest.approx(arithmetic / bandwidth, rel=0.05)
    moved = re.findall(r"^(?:written out|in one piece) +(\d+) +(\d+) +[\d.]+$", said, re.M)
    passes = 8 * side**2 / 1e6  # read and written once
    assert moved == [("4", f"{4 * passes:.0f}"), ("1", f"{passes:.0f}")]
    assert "at most 0e+00 apart\n" in said and "same outputs: True\n" in said
    rule, counted = (float(number) for number in re.findall(r"([\d.]+) GFLOP (?:a step|counted)", said))
    weights = 4 * (4 * 128 * 128 + 2 * 128 * 512)
    assert rule == pytest.approx(6 * weights * 512 / 1e9, rel=0.02) and rule < counted < 1.2 * rule


@pytest.mark.slow
def test_the_guide_after_lesson_14_shows_a_restart_and_a_model_in_two_parts(site):
    (guide,) = [script for script in GUIDES if script.stem == "restart_and_split"]
    said = f"{site.page(page_name(guide)).printed()}\n"
    (gap,) = re.findall(r"^largest difference of a weight: (\S+)$", said, re.M)
    assert float(gap) < 1e-12
    attempts = re.findall(r"^rank (\d), attempt (\d): (\d) epochs are done$", said, re.M)
    assert attempts == [("0", "0", "0"), ("1", "0", "0"), ("0", "1", "2"), ("1", "1", "2")]
    assert re.findall(r"^rank (\d), attempt 1: finished$", said, re.M) == ["0", "1"]
    memory = re.findall(r"^rank (\d), (whole|split): ([\d.]+) MiB now, ([\d.]+) at most$", said, re.M)
    assert [(rank, kind) for rank, kind, *_ in memory] == [*product("01", ("whole", "split"))]
    numbers = 4 * (1024 * 1024 + 1024) * 4 / 2**20  # of the parameters; there are three times as many more
    for _, kind, held, peak in memory:
        needed = 4 * numbers / (2 if kind == "split" else 1)
        assert needed - 0.05 <= float(held) < needed + 1  # it is printed rounded
        assert float(held) < float(peak) < 2 * needed
    assert re.search(r"^\.metadata __0_0\.distcp __1_0\.distcp$", said, re.M), "a file of each process"
    (losses,) = re.findall(r"^loss: (\S+) untrained, (\S+) loaded$", said, re.M)
    assert float(losses[1]) < float(losses[0])


PUBLISHED = [1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
             0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931]  # fmt: skip


def losses_of_lesson_3(output: str) -> tuple[list[float], list[float], list[float]]:
    """The three columns of its one table: the published losses, the copied file's, scikit-learn's."""
    row = r" *(\d+)" + r" +(\d\.\d{5})" * 3 + r"\n"
    found = re.findall(
        rf"^epoch +published +copied_file +scikit_learn\n((?:{row}){{10}})", output, flags=re.M
    )
    assert len(found) == 1, output
    epochs, *rest = zip(*re.findall(row, found[0][0]), strict=True)
    assert [int(epoch) for epoch in epochs] == list(range(1, 101, 10))
    published, copied, other = ([float(loss) for loss in column] for column in rest)
    return published, copied, other


def distance(losses: list[float]) -> list[float]:
    """How far these losses are from the published ones."""
    return [abs(loss - theirs) for loss, theirs in zip(losses, PUBLISHED, strict=True)]


@pytest.mark.slow
def test_lesson_3_reproduces_the_published_losses(site):
    # the published figures stand here once more, so that the lesson's own copy is checked
    said = printed(site, "03")
    theirs, copied, other = losses_of_lesson_3(said)
    assert theirs == [round(loss, 5) for loss in PUBLISHED]
    assert copied[0] == 1.15071
    assert max(distance(copied)) <= 5e-5
    assert 1e-5 < distance(other)[0] == min(distance(other))  # what the page says of it


@pytest.mark.slow
def test_lesson_3_goes_downhill(site):
    """One weight a little each way, its slope, a walk against it, and then all of them."""
    said = printed(site, "03")
    rows = [tuple(map(float, row)) for row in re.findall(r"^weight (\S+): loss (\S+)$", said, re.M)]
    (lower, less), (start, loss), (higher, more) = rows
    slope, gradient = map(float, re.search(r"^slope: (\S+)\ngradient: (\S+)$", said, re.M).groups())
    assert slope == pytest.approx((more - less) / (higher - lower), abs=6e-3)
    assert slope == gradient > 0 and less < loss < more
    walk = re.findall(r"^weight +(\S+): loss (\S+), gradient (\S+)$", said, re.M)
    weights, heights, gradients = zip(*(map(float, row) for row in walk), strict=True)
    assert len(walk) == 6 and (weights[0], heights[0], gradients[0]) == (start, loss, gradient)
    steps = [before - after for before, after in pairwise(weights)]
    assert steps == pytest.approx([2 * each for each in gradients[:-1]], abs=12e-3)
    assert all(far > near > 0 for far, near in pairwise(steps)) and heights == tuple(sorted(heights)[::-1])
    losses = [float(found) for found in re.findall(r"^epoch +\d+: loss (\S+)$", said, re.M)]
    assert len(losses) == 3 and losses[0] == loss and losses == sorted(losses, reverse=True)
    again = re.findall(r"^[CG]PU: loss (\S+) in epoch 1, (\S+) in epoch 100$", said, re.M)
    assert len(again) == 2 and {float(first) for first, _ in again} == {loss}
    assert [float(later) for _, later in again] == pytest.approx([losses[1]] * 2, abs=1e-3)
    counts = re.findall(r"^(\d+) of 30 right", said, re.M)  # of the first program, and of its parts
    assert len(counts) == 2 and counts[0] == counts[1] and int(counts[0]) >= 28


@pytest.mark.slow
def test_lesson_4_shows_what_its_text_says(site):
    said = printed(site, "04")
    on_cpu, on_gpu = (
        re.findall(rf"^epoch \d: loss (\S+){where}$", said, re.M) for where in ("", r" on cuda:0")
    )
    assert len(on_cpu) == 3 and [float(loss) for loss in on_cpu] == pytest.approx(
        [float(loss) for loss in on_gpu], abs=2e-3
    )
    numbers = r"^Ankle boot: bias (\S+), loss (\S+)\ngradient (\S+)\nbias (\S+)\nloss (\S+)$"
    bias, loss, gradient, moved, after = map(float, re.search(numbers, said, re.M).groups())
    assert gradient > 0 and moved == pytest.approx(bias - 0.1 * gradient, abs=1.1e-4) and after < loss
    once, twice = (float(found) for found in re.findall(r"^gradient after .*: (\S+)$", said, re.M))
    assert once > 0 and twice == pytest.approx(2 * once, abs=2e-4)
    runs = re.findall(r"^shuffle (\w+): (\d+) right, answers \[(.+)\]$", said, re.M)
    (_, few, missing), (_, many, every) = runs
    assert int(few) < int(many) > 300 and len(missing.split(",")) < len(every.split(",")) == 10
    seen, unseen = (float(share) for share in re.findall(r"has (?:not )?seen: (\S+)% right$", said, re.M))
    assert seen > 95 > unseen + 10
    epochs = [float(share) for share in re.findall(r"^epoch \d: (\S+)% right$", said, re.M)]
    devices = re.findall(r"^(?:first|second) run on (.+): \d+\.\d\d seconds$", said, re.M)
    assert len(epochs) == 3 * len(devices) and min(epochs) > 60 and epochs[:3] == epochs[3:6]
    assert devices[0] == devices[1] and len(devices) == 2 * len(set(devices)) <= 4
    true, learned = (
        [float(number) for number in re.findall(r"[\d.]+", row)]
        for row in re.findall(r"^(?:true|learned): +\[(.+)\]$", said, re.M)
    )
    assert len(true) == 6 and learned == pytest.approx(true, abs=0.1)


@pytest.mark.slow
def test_lesson_3_computes_probabilities_and_loss_of_one_flower(site):
    said = printed(site, "03")
    (scores, before), (after,) = (
        [list(map(float, row.split(","))) for row in re.findall(r"tensor\(\[(.+)\], grad_fn", rows)]
        for rows in re.findall(r"^((?:scores: .+\n)?probabilities: .+)$", said, re.M)
    )
    powers = [math.exp(score) for score in scores]
    assert before == pytest.approx([power / sum(powers) for power in powers], abs=1e-3)
    right, species = re.search(r"^tensor\((\d)\) means (\w+)$", said, re.M).groups()
    assert (right, species) == ("1", "versicolor"), "as the text says"
    right = int(right)
    found = re.search(r"^our flower, by hand: +(\S+)\nCrossEntropyLoss: +(\S+)$", said, re.M)
    by_hand, by_torch = map(float, found.groups())
    assert by_hand == pytest.approx(by_torch, abs=2e-4)
    assert by_torch == pytest.approx(-math.log(powers[right] / sum(powers)), abs=1e-3)
    others = re.findall(r"^right class has (\S+): loss (\S+)$", said, re.M)
    assert others == [(p, f"{-math.log(float(p)):.2f}") for p in ("0.9", "0.5", "0.01")]
    assert max(before) != before[right] < 0.8 < after[right], "wrong before training, right after"


@pytest.mark.gpu(real=True)
def test_lesson_3_reproduces_the_published_losses_on_a_gpu(warm, tmp_path):
    done = run_script(warm, ROOT / "examples/03_first_model.py", tmp_path, GPULESSON_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    assert torch.cuda.get_device_name() in done.stdout
    _, gpu, _ = losses_of_lesson_3(done.stdout)  # the copied file's are computed on the GPU
    assert distance(gpu)[0] <= 1e-5
    assert max(distance(gpu)) <= 1e-3
