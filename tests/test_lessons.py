"""The lessons' texts and the exercises' files: complete, consistent, and doing what the pages say of them."""

import ast
import difflib
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import run_script

from gpulesson import practice_gpu
from gpulesson.data import excerpt_folder

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
EXERCISES = sorted((ROOT / "examples" / "exercises").glob("*.py"))
SOLUTIONS = sorted((ROOT / "examples" / "solutions").glob("*.py"))
SCRIPTS = sorted((ROOT / "examples" / "scripts").glob("*.py"))  # whole programs that a lesson offers


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
    assert len(items(text, "objectives")) == 3
    assert len(items(text, "keypoints")) == 3, "one key point per objective"
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


def test_the_readme_lists_every_lesson_by_its_title_with_its_minutes():
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \| (\d+) \+ (\d+) \|", (ROOT / "README.md").read_text(), flags=re.M
    )
    lessons = [path.read_text() for path in LESSONS]
    minutes = [re.search(r":teaching: (\d+)\n.*:exercises: (\d+)\n", text).groups() for text in lessons]
    assert [(f"{number} · {title}", times) for number, title, *times in rows] == [
        (text.splitlines()[1], list(times)) for text, times in zip(lessons, minutes, strict=True)
    ]


def test_the_readme_shows_lines_of_the_two_scripts():
    before, after = (
        (ROOT / "examples/scripts" / name).read_text() for name in ("circle.py", "circle_gpu.py")
    )
    (shown,) = re.findall(r"```diff\n(.+?)```", (ROOT / "README.md").read_text(), flags=re.S)
    for sign, line in ((line[0], f"\n{line[1:]}\n") for line in shown.splitlines()):
        assert (line in before, line in after) == (sign != "+", sign != "-"), line


def test_lessons_do_not_import_one_another():
    for lesson in LESSONS:
        names = "|".join(re.escape(other.stem) for other in LESSONS if other != lesson)
        code = re.sub(r"^#.*", "", lesson.read_text(), flags=re.M)
        assert not re.search(rf"\b(examples|runpy|import_module|{names})\b", code.split('"""', 2)[2])


def test_the_script_of_lesson_14_is_lesson_5s_but_for_what_several_gpus_need():
    one, several = (ROOT / "examples/scripts" / name for name in ("fashion_mnist.py", "fashion_mnist_ddp.py"))
    changes = difflib.unified_diff(one.read_text().splitlines(), several.read_text().splitlines(), n=0)
    gone = [line for line in changes if line.startswith("-")][1:]
    assert 5 < len(gone) <= 12, gone


def test_torchrun_is_started_in_the_same_way_on_every_page():
    pages = [*(ROOT / "docs").glob("*.rst"), *LESSONS, *SCRIPTS, *(ROOT / "examples/guides").glob("*.py")]
    commands = [line for path in pages for line in re.findall(r"torchrun --.*", path.read_text("utf-8"))]
    assert len(commands) > 8
    assert not [
        line for line in commands if not line.startswith(("torchrun --standalone", "torchrun --nnodes"))
    ]


@pytest.mark.thorough  # in each run, the page of lesson 14 shows the same
@pytest.mark.slow
def test_the_script_of_lesson_14_trains_on_two_gpus_as_lesson_5s_does_on_one(tmp_path):
    script = ROOT / "examples/scripts/fashion_mnist_ddp.py"
    command = [sys.executable, "-m", "gpulesson", "practice", "--nproc", "2", str(script)]
    command.append(str(excerpt_folder()))
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
    right, total = numpy_accuracy(weights, excerpt_folder() / "FashionMNIST" / "raw")
    stated = re.fullmatch(r"(\d+) of (\d+) test images right: (\d+\.\d\d)%", lines[7])
    assert int(stated[2]) == total and abs(int(stated[1]) - right) <= 2
    assert len(lines) == 8 and right / total > 0.7


@pytest.mark.thorough
@pytest.mark.slow
def test_each_of_two_machines_fetches_the_data_of_lesson_14(tmp_path):
    """As two launchers on this one, with one GPU and three; a copy of the excerpt stands for the download."""
    text = (ROOT / "examples/scripts/fashion_mnist_ddp.py").read_text("utf-8")
    fetch = f"__import__('shutil').copytree({str(excerpt_folder())!r}, folder)"
    for words, instead in ("FashionMNIST(folder, download=True)", fetch), ("EPOCHS, BATCH", "_, BATCH"):
        assert text.count(words) == 1
        text = text.replace(words, instead)
    (tmp_path / "train.py").write_text(f"EPOCHS = 1\n{text}", "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
    launch += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    machines = []
    for number, gpus in enumerate((1, 3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [*launch, f"--node-rank={number}", f"--nproc-per-node={gpus}", "-m", "practice_gpu"]
        command += ["--force", "../train.py", "data"]
        machines.append(subprocess.Popen(command, cwd=folder))
    try:
        assert [machine.wait(600) for machine in machines] == [0, 0]
    finally:
        for machine in machines:
            machine.terminate()
    assert all((tmp_path / str(number) / "data" / "FashionMNIST").is_dir() for number in range(2))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_to_take_along_needs_torch_and_torchvision_only(script):
    text = script.read_text()
    longest = 105 if script.stem.endswith("_ddp") else 80  # several GPUs take 20 lines more
    assert len(text.splitlines()) <= longest, "it is to be read, from top to bottom"
    nodes = list(ast.walk(ast.parse(text)))
    taken = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    taken |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in taken} - sys.stdlib_module_names <= {"torch", "torchvision"}


def test_the_script_of_the_first_page_does_the_same_on_a_gpu(warm, tmp_path):
    cpu, gpu = (
        run_script(warm, ROOT / "examples/scripts" / name, tmp_path, practice=True)
        for name in ("circle.py", "circle_gpu.py")
    )
    assert cpu.returncode == gpu.returncode == 0 and cpu.stdout == gpu.stdout
    said = re.fullmatch(
        r"loss of the last batch: (\d\.\d{4})\nright on 500 new points: (\d+\.\d)%\n", gpu.stdout
    )
    loss, right = said.groups()
    assert float(loss) < 0.2 and float(right) > 95
    plain = run_script(warm, ROOT / "examples/scripts/circle_gpu.py", tmp_path)
    assert torch.cuda.is_available() or plain.stdout == gpu.stdout


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot ask a program to end")
def test_the_script_of_lesson_6_ends_with_the_same_weights_after_a_signal(warm, tmp_path):
    script = ROOT / "examples/scripts/save_and_resume.py"
    stopped, whole, last = (tmp_path / name for name in ("stopped", "whole", "last"))
    for folder in (stopped, whole, last):
        folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script]
    with subprocess.Popen(command, cwd=stopped, env=environment, stdout=subprocess.PIPE, text=True) as first:
        line = first.stdout.readline()
        first.send_signal(signal.SIGTERM)
        before = line + first.stdout.read()
    assert first.returncode == 75 and before.count("\n") < 10
    saved = torch.load(stopped / "run/checkpoint.pt", weights_only=True)
    assert saved["epoch"] == before.count("\n")
    second, other = (run_script(warm, script, folder) for folder in (stopped, whole))
    assert second.returncode == other.returncode == 0
    assert before + second.stdout == other.stdout
    assert other.stdout.splitlines()[-1].startswith("Epoch [10/10], last loss ")
    # as if a signal came in the last step of an epoch
    asks = "optimizer.step()\n            asked += [15] * ((epoch, step) == (1, len(loader) - 1))\n"
    asking = tmp_path / "asking.py"
    asking.write_text(script.read_text("utf-8").replace("optimizer.step()\n", asks), "utf-8")
    asked, after = run_script(warm, asking, last), run_script(warm, script, last)
    assert (asked.returncode, after.returncode) == (75, 0), after.stderr
    assert asked.stdout.count("\n") == 2 and asked.stdout + after.stdout == other.stdout
    expected = torch.load(whole / "run/weights.pt", weights_only=True)
    for folder in (stopped, last):
        found = torch.load(folder / "run/weights.pt", weights_only=True)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


class Noise(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.stack([torch.tensor(float(row)), torch.rand(())])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "persistent", "rows", "random"),
    [(0, False, True, False), (2, False, True, True), (2, True, False, False)],
)
def test_what_lesson_6_says_of_loaders_after_a_stop_within_an_epoch(workers, persistent, rows, random):
    def batches(first: int, done: int) -> list[torch.Tensor]:
        order = torch.Generator()
        settings = {"num_workers": workers, "persistent_workers": persistent, "generator": order}
        loader = torch.utils.data.DataLoader(Noise(), batch_size=4, shuffle=True, **settings)
        found = []
        for epoch in range(first, 3):
            order.manual_seed(epoch)
            found += [batch for step, batch in enumerate(loader) if (epoch, step) >= (first, done)]
        return found

    torch.manual_seed(0)
    expected, found = torch.stack(batches(0, 0)[8:]), torch.stack(batches(1, 2))
    assert torch.equal(found[..., 0], expected[..., 0]) == rows
    assert torch.equal(found[..., 1], expected[..., 1]) == random


class Loader(list):
    dataset = range(4)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_script_of_lesson_5_weights_each_loss_by_its_images(kind):
    script = runpy.run_path(str(ROOT / "examples/scripts/fashion_mnist.py"))
    images, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    model, loss_fn = script["Classifier"](), torch.nn.CrossEntropyLoss()
    expected = loss_fn(model(images), labels).item()
    loader = Loader(zip(images.split(3), labels.split(3), strict=True))
    with practice_gpu(force=True) if kind == "cuda" else nullcontext():
        device = torch.device(kind)
        model = model.to(device)
        still = torch.optim.SGD(model.parameters(), lr=0.0)
        assert script["train_epoch"](model, loader, loss_fn, still, device) == pytest.approx(expected)
        answers = model(images.to(device)).argmax(dim=1).tolist()
        right = sum(answer == label for label, answer in enumerate(answers))
        assert script["count_correct"](model, loader, device) == right


@pytest.mark.slow
def test_the_script_of_lesson_5_trains_without_the_package_and_saves_what_it_evaluated(tmp_path):
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
    done = python(script, str(excerpt_folder()))
    assert done.returncode == 0, done.stderr
    device, *epochs, result = done.stdout.splitlines()
    found = torch.accelerator.current_accelerator(check_available=True)
    assert device == f"training on {found or 'cpu'}"
    losses = [re.fullmatch(r"Epoch \[(\d)/5\], loss (\d\.\d{4})", line).groups() for line in epochs]
    assert [int(number) for number, _ in losses] == [1, 2, 3, 4, 5]
    assert float(losses[-1][1]) < float(losses[0][1]) < np.log(10)

    assert [path.name for path in folder.iterdir()] == ["fashion_mnist.pt"]
    weights = torch.load(folder / "fashion_mnist.pt", weights_only=True, map_location="cpu")
    right, total = numpy_accuracy(weights, excerpt_folder() / "FashionMNIST" / "raw")
    stated = re.fullmatch(r"(\d+) of (\d+) test images right: (\d+\.\d\d)%", result)
    assert (
        int(stated[2]) == total and abs(int(stated[1]) - right) <= 2
    )  # float32 may settle a tie another way
    assert float(stated[3]) == pytest.approx(100 * int(stated[1]) / total, abs=0.005)
    assert right / total > 0.7
