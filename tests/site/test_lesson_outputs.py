"""What the lessons print on their pages, against arithmetic of its own."""

from __future__ import annotations

import math
import re

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
    segments = re.findall(r"^expandable (\w+): (\d+) MiB reserved$", said, re.M)
    assert segments == [("False", str(30 + 50 + 70 + 90)), ("True", "100")]  # it grows by 20 MiB
    stopped, went_on = re.findall(r"^(\d+) losses\n(.*)$", said, re.M)
    # it had a little more: what a first backward pass has left free
    assert 0 <= int(stopped[0]) - 32 * 2**20 // activations <= 2 + parameters // activations
    assert stopped[1] == "CUDA out of memory." and went_on == ("100", "no error")


@pytest.mark.slow
def test_lesson_13_shows_what_each_way_saves(site):
    said = printed(site, "13")

    def numbers(pattern):
        return [float(number) for number in re.search(pattern, said).groups()]

    # 128 images, 8 channels; three results a block and one before them; the peak has a few more
    result = 128 * 8 * 28 * 28 * 4 / 2**20
    assert numbers(r"([\d.]+) MiB allowed;") == [50]
    (before,), (caught,) = numbers(r"before: +([\d.]+) MiB"), numbers(r"in except: +([\d.]+) MiB")
    assert numbers(r"after except: +([\d.]+) MiB") == [before] and before < 1 < 30 < caught <= 50
    (large,), (small,) = numbers(r"128 at once: +([\d.]+) MiB"), numbers(r"4 times 32: +([\d.]+) MiB")
    assert 25 * result < large < 27 * result
    assert abs(small - large / 4) < 1
    rounding, parted = numbers(r"Identity +(\S+)\n"), numbers(r"BatchNorm2d +(\S+)\n")
    assert rounding[0] < 1e-12 and numbers(r"group_norm +(\S+)\n")[0] < 1e-12 < 1e-3 < parted[0]
    (whole,) = numbers(r"all rows at once: +([\d.]+)\n")
    assert numbers(r"shares of counted: +([\d.]+)\n")[0] == pytest.approx(whole, abs=2e-4)
    assert numbers(r"shares of rows: +([\d.]+)\n")[0] != pytest.approx(whole, abs=2e-4)
    # a convolution of 9 · 8 · 8 weights: two FLOP forward, four backward; recomputing, two once more
    again = 16 * 2 * 9 * 8 * 8 * 128 * 784 / 1e9
    kept, work = numbers(r"Net +([\d.]+) MiB, +([\d.]+) GFLOP")
    less, more = numbers(r"Recomputing +([\d.]+) MiB, +([\d.]+) GFLOP")
    assert kept == large and abs(less - 12 * result) < 1 and abs(more - work - again) < 0.2
    (full,), (half,) = numbers(r"float32: +([\d.]+) MiB"), numbers(r"autocast: +([\d.]+) MiB")
    assert 0.45 * full < half < 0.55 * full
    # four layers; a gradient and two numbers of Adam, four bytes each, in blocks of 512 bytes
    every, low = 4 * (1024 * 1024 + 1024), 4 * 2 * 8 * 1024
    for name, count in (("all", every), ("low rank", low)):
        trained, mib = re.search(rf"^{name} +trains +([\d,]+) numbers: +([\d.]+) MiB", said, re.M).groups()
        assert int(trained.replace(",", "")) == count and float(mib) == round(3 * 4 * count / 2**20, 2)
    assert numbers(r"on the GPU: +([\d.]+) MiB") == [large]
    assert numbers(r"offloaded: +([\d.]+) MiB")[0] < large / 4


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


@pytest.mark.slow
def test_the_guide_after_lesson_14_shows_a_restart_and_a_model_in_two_parts(site):
    (guide,) = [script for script in GUIDES if script.stem == "restart_and_split"]
    said = f"{site.page(page_name(guide)).printed()}\n"
    (gap,) = re.findall(r"^largest difference of a weight: (\S+)$", said, re.M)
    assert float(gap) < 1e-12
    attempts = re.findall(r"^rank (\d), attempt (\d): (\d) epochs are done$", said, re.M)
    assert attempts == [("0", "0", "0"), ("0", "1", "2"), ("1", "0", "0"), ("1", "1", "2")]
    assert re.findall(r"^rank (\d), attempt 1: finished$", said, re.M) == ["0", "1"]
    shared = re.findall(r"^rank \d: whole +([\d.]+) MiB, split +([\d.]+) MiB$", said, re.M)
    numbers = 4 * (1024 * 1024 + 1024) * 4 / 2**20  # of the parameters; there are three times as many more
    for copied, part in shared:
        assert 4 * numbers - 0.05 <= float(copied) < 4 * numbers + 1
        assert 2 * numbers - 0.05 <= float(part) < 2 * numbers + 1  # it is printed rounded
    assert len(shared) == 2


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
    assert "the same losses: True" in said  # layers in a row, and the class


@pytest.mark.slow
def test_lesson_3_computes_shares_and_loss_of_one_flower(site):
    said = printed(site, "03")
    scores = re.search(r"^scores:  tensor\(\[\[ *(\S+), +(\S+), +(\S+)\]\]", said, re.M).groups()
    powers = [math.exp(float(score)) for score in scores]
    before, after = (
        [float(share) for share in re.findall(r"\S+$", rows, re.M)]
        for rows in re.findall(r"^(setosa +\S+\nversicolor +\S+\nvirginica +\S+)$", said, re.M)
    )
    assert before == pytest.approx([power / sum(powers) for power in powers], abs=1e-3)
    right = ["setosa", "versicolor", "virginica"].index(re.search(r"^species: (\w+)$", said, re.M)[1])
    found = re.search(r"^by hand: +(\S+)\nCrossEntropyLoss: (\S+)\nall three equal: +(\S+)$", said, re.M)
    by_hand, by_torch, equal = map(float, found.groups())
    assert by_hand == pytest.approx(by_torch, abs=2e-4)
    assert by_torch == pytest.approx(-math.log(powers[right] / sum(powers)), abs=1e-3)
    assert equal == pytest.approx(math.log(3), abs=1e-4)
    assert max(before) != before[right] < 1 / 3 < 0.8 < after[right], "wrong before training, right after"


@pytest.mark.gpu(real=True)
def test_lesson_3_reproduces_the_published_losses_on_a_gpu(warm, tmp_path):
    done = run_script(warm, ROOT / "examples/03_first_model.py", tmp_path, GPULESSON_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    assert torch.cuda.get_device_name() in done.stdout
    _, gpu, _ = losses_of_lesson_3(done.stdout)  # the copied file's are computed on the GPU
    assert distance(gpu)[0] <= 1e-5
    assert max(distance(gpu)) <= 1e-3
