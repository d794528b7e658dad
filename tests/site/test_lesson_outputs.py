"""What the lessons print on their pages, against arithmetic of its own."""

from __future__ import annotations

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
    stopped, went_on = re.findall(r"^(\d+) losses\n(.*)$", said, re.M)
    assert 0 <= int(stopped[0]) - 32 * 2**20 // activations <= 2  # it had a little more
    assert stopped[1] == "CUDA out of memory." and went_on == ("100", "no error")


@pytest.mark.slow
def test_lesson_13_shows_what_each_way_saves(site):
    said = printed(site, "13")

    def numbers(pattern):
        return [float(number) for number in re.search(pattern, said).groups()]

    # 256 images, 8 channels; three results a block and one before them; the peak has a few more
    result = 256 * 8 * 28 * 28 * 4 / 2**20
    (large,), (small,) = numbers(r"256 at once: +([\d.]+) MiB"), numbers(r"4 times 64: +([\d.]+) MiB")
    assert 37 * result < large < 39 * result
    assert abs(small - large / 4) < 1
    rounding, parted = numbers(r"no norm +(\S+)\n"), numbers(r"BatchNorm2d +(\S+)\n")
    assert rounding[0] < 1e-12 and numbers(r"GroupNorm +(\S+)\n")[0] < 1e-12 < 1e-3 < parted[0]
    # a convolution of 9 · 8 · 8 weights: two FLOP forward, four backward; recomputing, two once more
    again = 24 * 2 * 9 * 8 * 8 * 256 * 784 / 1e9
    kept, work = numbers(r"Net +([\d.]+) MiB, +([\d.]+) GFLOP")
    less, more = numbers(r"Recomputing +([\d.]+) MiB, +([\d.]+) GFLOP")
    assert kept == large and abs(less - 16 * result) < 1 and abs(more - work - again) < 0.2
    (full,), (half,) = numbers(r"float32: +([\d.]+) MiB"), numbers(r"autocast: +([\d.]+) MiB")
    assert 0.45 * full < half < 0.55 * full
    assert numbers(r"bfloat16, Adam +([\d.]+) GiB") == [round(8e9 / 2**30, 1)]
    rows = re.findall(r"^(.+?) +([\d.]+) GiB +(fits|close|does not fit) +(\d+) +(\d+) ms$", said, re.M)
    table = {name: (float(peak), answer) for name, peak, answer, _, _ in rows}
    assert list(table) == ["as it is", "accumulate 4 × 24", "recompute", "autocast", "both"]
    assert table["as it is"][1] == "does not fit" and table["both"][1] == "fits"
    assert table["both"][0] < min(table["recompute"][0], table["autocast"][0])


@pytest.mark.slow
def test_lesson_14_shows_that_two_learn_what_one_learns(site):
    said = printed(site, "14")
    assert re.findall(r"^rank (\d) of 2 on cuda:(\d): the sum is 3\.0$", said, re.M) == [
        ("0", "0"),
        ("1", "1"),
    ]
    parts = re.findall(r"^rank \d: (\d+) rows, own (\S+), averaged (\S+)$", said, re.M)
    ((rows, whole),) = re.findall(r"^one process: (\d+) rows, (\S+)$", said, re.M)
    own = [float(gradient) for _, gradient, _ in parts]
    assert {averaged for _, _, averaged in parts} == {whole} and len(set(own)) == len(parts) == 2
    assert sum(own) / 2 == pytest.approx(float(whole), abs=1e-6)
    assert sum(int(number) for number, _, _ in parts) == int(rows) == 50
    gaps = [float(gap) for gap in re.findall(r"^largest difference of a weight: (\S+)$", said, re.M)]
    assert len(gaps) == 1 and max(gaps) < 1e-12
    assert "rank 0: 1 rows of the last batch" in said and "rank 1: 0 rows of the last batch" in said
    assert "Multiple Ranks are using the same GPU" in said or "Duplicate GPU detected" in said


@pytest.mark.slow
def test_the_guide_after_lesson_14_shows_a_restart_and_a_model_in_two_parts(site):
    (guide,) = [script for script in GUIDES if script.stem == "restart_and_split"]
    said = f"{site.page(page_name(guide)).printed()}\n"
    (gap,) = re.findall(r"^largest difference of a weight: (\S+)$", said, re.M)
    assert float(gap) < 1e-12
    assert re.findall(r"^rank (\d): finished in attempt 1, after 11 steps$", said, re.M) == ["0", "1"]
    shared = re.findall(r"^rank \d: copied +([\d.]+) MiB, split +([\d.]+) MiB$", said, re.M)
    numbers = 4 * (1024 * 1024 + 1024) * 4 / 2**20  # of the parameters; there are three times as many more
    for copied, part in shared:
        assert 4 * numbers - 0.05 <= float(copied) < 4 * numbers + 1
        assert 2 * numbers - 0.05 <= float(part) < 2 * numbers + 1  # it is printed rounded
    assert len(shared) == 2


PUBLISHED = [1.15071142, 0.93773186, 0.77982736, 0.60996711, 0.40083539,
             0.25436994, 0.15052448, 0.10086147, 0.08127660, 0.07230931]  # fmt: skip


def columns(output: str, *titles: str) -> list[list[float]]:
    """The columns of the one table of ten losses that has these titles."""
    number = r" +(\d\.\d{8})"
    row = rf" *(\d+){number * len(titles)}\n"
    found = re.findall(rf"^epoch +{' +'.join(titles)}\n((?:{row}){{10}})", output, flags=re.M)
    assert len(found) == 1, output
    epochs, *rest = zip(*re.findall(row, found[0][0]), strict=True)
    assert [int(epoch) for epoch in epochs] == list(range(1, 101, 10))
    return [[float(loss) for loss in column] for column in rest]


def distance(losses: list[float]) -> list[float]:
    """How far these losses are from the published ones."""
    return [abs(loss - theirs) for loss, theirs in zip(losses, PUBLISHED, strict=True)]


@pytest.mark.slow
def test_lesson_3_reproduces_the_published_losses(site):
    # the published figures stand here once more, so that the lesson's own copy is checked
    said = printed(site, "03")
    theirs, ours, difference = columns(said, "published", "ours", "difference")
    assert theirs == PUBLISHED
    assert ours[0] == 1.15071142
    assert max(distance(ours)) <= 5e-5
    assert difference == pytest.approx(distance(ours), abs=2e-8)
    assert "the same outputs: True" in said  # the class that is written out, and MLP
    theirs, copied, other = columns(said, "published", "copied_file", "scikit_learn")
    assert (theirs, copied) == (PUBLISHED, ours)
    assert 1e-5 < distance(other)[0] == min(distance(other))  # what the page says of it


@pytest.mark.gpu(real=True)
def test_lesson_3_reproduces_the_published_losses_on_a_gpu(warm, tmp_path):
    done = run_script(warm, ROOT / "examples/03_first_model.py", tmp_path, GPULESSON_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    assert torch.cuda.get_device_name() in done.stdout
    _, _, gpu = columns(done.stdout, "published", "CPU", "GPU")
    assert distance(gpu)[0] <= 5e-7
    assert max(distance(gpu)) <= 1e-3
