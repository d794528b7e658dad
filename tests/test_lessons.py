"""The lessons' texts and the exercises' files: complete, consistent, and doing what the pages say of them."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import run_script

from gpulesson import practice_gpu

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
EXERCISES = sorted((ROOT / "examples" / "exercises").glob("*.py"))
SOLUTIONS = sorted((ROOT / "examples" / "solutions").glob("*.py"))
SCRIPTS = sorted((ROOT / "examples" / "scripts").glob("*.py"))  # whole programs that a lesson offers


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(warm, tmp_path) -> Run:
    """Runs a script, or a program that is given as text, in its own process, from an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(program: Path | str, **options) -> subprocess.CompletedProcess[str]:
        assert not list(folder.iterdir())
        if isinstance(program, str):
            (tmp_path / "program.py").write_text(program)
            program = tmp_path / "program.py"
        return run_script(warm, program, folder, **options)

    return run


def items(text: str, box: str) -> list[str]:
    """The list items of a box, from the script's text (with or without comment signs)."""
    plain = re.sub(r"^# ?", "", text, flags=re.M)
    match = re.search(rf"^( *)\.\. {box}::\n((?:\1 +.*\n|\n)+)", plain, flags=re.M)
    assert match, f"no {box} box"
    return re.findall(r"^ +- ", match[2], flags=re.M)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_all_its_parts(lesson):
    text = lesson.read_text()
    assert re.match(r'"""\n.+\n=+\n\n\S[^.]*\.\n\n', text), "a title and one sentence come first"
    assert re.search(r":teaching: \d+\n +:exercises: \d+\n", text)
    assert items(text, "questions")
    assert len(items(text, "keypoints")) == len(items(text, "objectives")), "one key point per objective"
    starter, solution = re.search(r":starter: (\S+)", text), re.search(r":file: (\S+)", text)
    assert starter and starter[1] in [path.name for path in EXERCISES]
    assert solution and solution[1] in [path.name for path in SOLUTIONS]
    number = lesson.name[:2]
    assert (starter[1], solution[1]) == (f"exercise_{number}.py", f"solution_{number}.py")
    assert re.search(r"\*\*Predict:\*\*", text), "an exercise asks for a prediction"


def test_lessons_are_numbered_in_order_from_01_each_number_once():
    numbers = [int(path.name[:2]) for path in LESSONS]  # a number may be free: lessons keep theirs
    assert numbers[0] == 1 and all(a < b for a, b in pairwise(numbers))
    assert [path.name[-5:] for path in EXERCISES] == [path.name[-5:] for path in SOLUTIONS]
    names = [path.name for path in (*LESSONS, *EXERCISES, *SOLUTIONS, *SCRIPTS)]
    assert len(names) == len(set(names)), "two files that a reader may have in one folder have the same name"


def test_the_readme_lists_every_lesson_by_its_title():
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (ROOT / "README.md").read_text(), flags=re.M)
    assert [f"{number} · {title}" for number, title in rows] == [
        path.read_text().splitlines()[1] for path in LESSONS
    ]


def test_lessons_do_not_import_one_another():
    for lesson in LESSONS:
        names = "|".join(re.escape(other.stem) for other in LESSONS if other != lesson)
        code = re.sub(r"^#.*", "", lesson.read_text(), flags=re.M)
        assert not re.search(rf"\b(examples|runpy|import_module|{names})\b", code.split('"""', 2)[2])


@pytest.mark.slow
def test_lesson_10_meets_its_predictions(run):
    """The sizes are added up here once more, from the layers that the page names."""
    done = run(ROOT / "examples/10_where_did_my_memory_go.py")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w[\w ]*\w) +([\d,]+) +([\d,]+)$", done.stdout, re.M)
    ledger = {name: (int(a.replace(",", "")), int(b.replace(",", ""))) for name, a, b in rows}
    layers = [(784, 256), (256, 256), (256, 256), (256, 10)]
    parameters = sum(4 * a * b + -(-4 * b // 512) * 512 for a, b in layers)
    activations = 128 * (3 * 256 + 10) * 4 + 512 + 512
    sizes = {"parameters": parameters, "activations": activations, "gradients": parameters}
    sizes |= {"optimizer state": 2 * parameters, "batch": 128 * (4 * 784 + 8)}
    assert ledger == {name: (size, size) for name, size in sizes.items()}
    said = re.findall(r"(\d+) rows: the peak is in the part '(\w+)'", done.stdout)
    assert said == [("128", "optimizer"), ("2048", "backward")]
    hidden = 128 * 256 * 4  # the result of a hidden layer: four of them at the peak, or two
    for name, results in (("as in training", 4), ("no_grad", 2), ("inference_mode", 2)):
        assert re.search(rf"^{name} +{results * hidden:,} bytes more", done.stdout, re.M), done.stdout
    for name, nbytes in (("loss", activations), ("loss.detach()", 512), ("loss.item()", 0)):
        assert re.search(rf"^{re.escape(name)} +{nbytes:,} bytes a loss$", done.stdout, re.M), done.stdout
    stopped, went_on = re.findall(r"^(\d+) losses\n(.*)$", done.stdout, re.M)
    assert 0 <= int(stopped[0]) - 32 * 2**20 // activations <= 2  # it had a little more
    assert stopped[1] == "CUDA out of memory." and went_on == ("100", "no error")


@pytest.mark.slow
def test_lesson_13_shows_what_each_way_saves(run):
    done = run(ROOT / "examples/13_when_it_does_not_fit.py")
    assert done.returncode == 0, done.stderr
    said = done.stdout

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
def test_lesson_14_shows_that_two_learn_what_one_learns(run):
    done = run(ROOT / "examples/14_many_gpus.py")
    assert done.returncode == 0, done.stderr
    said = done.stdout
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
    assert len(gaps) == 2 and max(gaps) < 1e-12
    assert "rank 0: 1 rows of the last batch" in said and "rank 1: 0 rows of the last batch" in said
    assert "Multiple Ranks are using the same GPU" in said or "Duplicate GPU detected" in said
    assert re.findall(r"^rank (\d): finished in attempt 1, after 11 steps$", said, re.M) == ["0", "1"]
    shared = re.findall(r"^rank \d: copied +([\d.]+) MiB, split +([\d.]+) MiB$", said, re.M)
    numbers = 4 * (1024 * 1024 + 1024) * 4 / 2**20  # of the parameters; there are three times as many more
    for copied, part in shared:
        assert 4 * numbers - 0.05 <= float(copied) < 4 * numbers + 1
        assert 2 * numbers - 0.05 <= float(part) < 2 * numbers + 1  # it is printed rounded
    assert len(shared) == 2


@pytest.mark.slow
def test_the_script_of_lesson_14_trains_on_two_gpus_as_lesson_5s_does_on_one(genuine_data, tmp_path):
    script = ROOT / "examples/scripts/fashion_mnist_ddp.py"
    command = [sys.executable, "-m", "gpulesson", "practice", "--nproc", "2", str(script)]
    command.append(str(genuine_data.absolute()))
    whole_lines = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=whole_lines, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines(), key=lambda line: not line.startswith("training on"))
    assert sorted(lines[:2]) == ["training on cuda:0", "training on cuda:1"]
    losses = [re.fullmatch(r"Epoch \[(\d)/5\], loss (\d\.\d{4})", line).groups() for line in lines[2:7]]
    assert [int(number) for number, _ in losses] == [1, 2, 3, 4, 5]
    assert float(losses[-1][1]) < float(losses[0][1]) < np.log(10)
    weights = torch.load(tmp_path / "fashion_mnist.pt", weights_only=True, map_location="cpu")
    right, total = numpy_accuracy(weights, genuine_data / "FashionMNIST" / "raw")
    stated = re.fullmatch(r"(\d+) of (\d+) test images right: (\d+\.\d\d)%", lines[7])
    assert int(stated[2]) == total and abs(int(stated[1]) - right) <= 2
    assert len(lines) == 8 and right / total > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("script", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_where_there_is_a_gpu(script, run):
    """A simulated one, for the code that is left out without a GPU."""
    done = run(script, practice=True)
    assert done.returncode == 0, done.stderr
    assert "cuda" in done.stdout and "driver version" not in done.stderr


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
def test_lesson_3_reproduces_the_published_losses(run):
    # the published figures stand here once more, so that the lesson's own copy is checked
    done = run(ROOT / "examples" / "03_first_model.py", GPULESSON_DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    theirs, ours, difference = columns(done.stdout, "published", "ours", "difference")
    assert theirs == PUBLISHED
    assert ours[0] == 1.15071142
    assert max(distance(ours)) <= 5e-5
    assert difference == pytest.approx(distance(ours), abs=2e-8)
    assert "the same outputs: True" in done.stdout  # the class that is written out, and MLP
    theirs, copied, other = columns(done.stdout, "published", "copied_file", "scikit_learn")
    assert (theirs, copied) == (PUBLISHED, ours)
    assert 1e-5 < distance(other)[0] == min(distance(other))  # what the page says of it


@pytest.mark.gpu(real=True)
def test_lesson_3_reproduces_the_published_losses_on_a_gpu(run):
    done = run(ROOT / "examples" / "03_first_model.py", GPULESSON_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    assert torch.cuda.get_device_name() in done.stdout
    _, _, gpu = columns(done.stdout, "published", "CPU", "GPU")
    assert distance(gpu)[0] <= 5e-7
    assert max(distance(gpu)) <= 1e-3


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_to_take_along_needs_torch_and_torchvision_only(script):
    text = script.read_text()
    longest = 105 if script.stem.endswith("_ddp") else 80  # several GPUs take 20 lines more
    assert len(text.splitlines()) <= longest, "it is to be read, from top to bottom"
    nodes = list(ast.walk(ast.parse(text)))
    taken = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    taken |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in taken} - sys.stdlib_module_names == {"torch", "torchvision"}


def numpy_accuracy(weights: dict[str, torch.Tensor], raw: Path) -> tuple[int, int]:
    """Count the right answers of the network 784-128-64-10 on the test images, in NumPy and float64."""
    pixels = np.frombuffer((raw / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
    labels = np.frombuffer((raw / "t10k-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    values = pixels.reshape(len(labels), 784) / 255
    sizes = []
    for layer in ("hidden1", "hidden2", "out"):
        weight, bias = (weights[f"{layer}.{part}"].double().numpy() for part in ("weight", "bias"))
        values = values @ weight.T + bias
        sizes.append(values.shape[1])
        if layer != "out":
            values = np.maximum(values, 0)
    assert sizes == [128, 64, 10] and len(weights) == 6
    return int((values.argmax(axis=1) == labels).sum()), len(labels)


class Recorded:
    """A tensor that notes how it is copied."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.asked = tensor, []

    def to(self, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        self.asked.append(non_blocking)
        return self.tensor.to(device, non_blocking=non_blocking)


class Loader(list):
    dataset = range(4)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_script_of_lesson_5_goes_on_during_a_copy_towards_cuda_only(kind):
    # towards other devices such a copy may read a batch that is already freed (pytorch/pytorch#189690)
    script = runpy.run_path(str(ROOT / "examples/scripts/fashion_mnist.py"))
    images, labels = Recorded(torch.rand(4, 1, 28, 28)), Recorded(torch.tensor([0, 1, 2, 3]))
    with practice_gpu(force=True) if kind == "cuda" else nullcontext():
        device = torch.device(kind)
        model = script["Classifier"]().to(device)
        optimizer = torch.optim.Adam(model.parameters())
        loss = script["train_epoch"](
            model, Loader([(images, labels)]), torch.nn.CrossEntropyLoss(), optimizer, device
        )
    assert images.asked == labels.asked == [kind == "cuda"]
    assert 0 < loss < 10


@pytest.mark.slow
def test_the_script_of_lesson_5_trains_without_the_package_and_saves_what_it_evaluated(
    genuine_data, tmp_path
):
    folder, hidden = tmp_path / "empty", tmp_path / "hidden"
    folder.mkdir()
    hidden.mkdir()
    (hidden / "gpulesson.py").write_text("raise ImportError('the package is not here')\n")
    environment = {**os.environ, "PYTHONPATH": str(hidden)}
    script = shutil.copy(ROOT / "examples/scripts/fashion_mnist.py", tmp_path)

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    assert "the package is not here" in python("-c", "import gpulesson").stderr
    done = python(script, str(genuine_data.absolute()))
    assert done.returncode == 0, done.stderr
    device, *epochs, result = done.stdout.splitlines()
    found = torch.accelerator.current_accelerator(check_available=True)
    assert device == f"training on {found or 'cpu'}"
    losses = [re.fullmatch(r"Epoch \[(\d)/5\], loss (\d\.\d{4})", line).groups() for line in epochs]
    assert [int(number) for number, _ in losses] == [1, 2, 3, 4, 5]
    assert float(losses[-1][1]) < float(losses[0][1]) < np.log(10)

    assert [path.name for path in folder.iterdir()] == ["fashion_mnist.pt"]
    weights = torch.load(folder / "fashion_mnist.pt", weights_only=True, map_location="cpu")
    right, total = numpy_accuracy(weights, genuine_data / "FashionMNIST" / "raw")
    stated = re.fullmatch(r"(\d+) of (\d+) test images right: (\d+\.\d\d)%", result)
    assert (
        int(stated[2]) == total and abs(int(stated[1]) - right) <= 2
    )  # float32 may settle a tie another way
    assert float(stated[3]) == pytest.approx(100 * int(stated[1]) / total, abs=0.005)
    assert right / total > 0.7
