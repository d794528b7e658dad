"""The whole course as one file: what it holds, and that it runs in an empty folder, as its README says."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import nbformat
import pytest
import tomllib
from _ext.course import packed
from fresh import Environment
from packaging.requirements import Requirement
from pages import GUIDES, LESSONS, ROOT

EXAMPLES = ROOT / "examples"
SOLUTIONS = sorted((EXAMPLES / "solutions").glob("*.py"))
RUNNER = Path(__file__).with_name("run_notebook.py")


def test_the_same_files_give_the_same_bytes_in_any_order():
    first, second = {"b/x.py": b"1", "a": b"2" * 999}, {"a": b"2" * 999, "b/x.py": b"1"}
    assert packed(first) == packed(second)
    with zipfile.ZipFile(io.BytesIO(packed(first))) as archive:
        assert archive.namelist() == ["gpulesson-course/a", "gpulesson-course/b/x.py"]
        assert {(member.date_time[0], member.external_attr >> 16) for member in archive.infolist()} == {
            (1980, 0o100644)
        }


@pytest.mark.slow
def test_it_holds_every_script_notebook_and_solution(course, site):
    expected = {f"lessons/{script.stem}{end}" for script in LESSONS + GUIDES for end in (".py", ".ipynb")}
    starters = (EXAMPLES / "exercises").glob("*.py")
    expected |= {f"exercises/{script.stem}{end}" for script in starters for end in (".py", ".ipynb")}
    for folder in ("solutions", "scripts"):
        expected |= {f"{folder}/{script.name}" for script in (EXAMPLES / folder).glob("*.py")}
    jobs = {f"{name}.{end}" for name in ("one_node", "several_nodes", "array") for end in ("sbatch", "pbs")}
    expected |= {f"distributed/{name}" for name in jobs | {"train_ddp.py", "train_fsdp.py"}}
    (wheel,) = site.html.glob("gpulesson-*.whl")
    expected |= {wheel.name, "README.md", "requirements.txt", "LICENSE"}
    assert {path.relative_to(course).as_posix() for path in course.rglob("*") if path.is_file()} == expected
    assert (course / wheel.name).read_bytes() == wheel.read_bytes()
    for script in LESSONS:
        assert (course / "lessons" / script.name).read_bytes() == script.read_bytes()


@pytest.mark.slow
def test_what_it_installs_are_the_versions_of_the_build(course):
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    *pins, wheel = (course / "requirements.txt").read_text("utf-8").splitlines()
    assert pins == groups["lessons"] and (course / wheel).is_file()
    readme = (course / "README.md").read_text("utf-8")
    pytorch = [pin for pin in pins if pin.startswith("torch")]
    for pin in map(Requirement, pytorch):  # another build of PyTorch is the version that is asked for, too
        assert pin.specifier.contains(f"{str(pin.specifier).removeprefix('==')}+cpu"), pin
    assert f"pip install {' '.join(pytorch)} --index-url https://download.pytorch.org/whl/cpu" in readme
    assert "$" not in readme and all(name in readme for name in ("requirements.txt", "exercise_01.py"))


@pytest.mark.slow
def test_pages_link_to_it_and_the_wheels(site):
    for page, link in (
        ("index", "gpulesson-course.zip"),
        ("setup", "gpulesson-course.zip"),
        ("lessons/index", "../gpulesson-course.zip"),
    ):
        assert site.page(page).soup.select(f'article a[href="{link}"]'), page
    for page, package in (("setup", "gpulesson"), ("testing", "practice_gpu")):
        (wheel,) = site.html.glob(f"{package}-*.whl")
        assert site.page(page).soup.select(f'article a[href="{wheel.name}"]'), page


@pytest.mark.slow
@pytest.mark.parametrize(
    "solution",
    [
        pytest.param(path, marks=() if path.stem.endswith("04") else pytest.mark.thorough, id=path.stem)
        for path in SOLUTIONS
    ],
)
def test_check_passes_each_solution_and_no_starter(solution, environment, course):
    environment.install("-r", "requirements.txt", folder=course)
    command = ["-m", "gpulesson", "check", solution.stem[-2:], f"solutions/{solution.name}"]
    done = environment.run(*command, folder=course, network=False)
    assert done.returncode == 0, done.stdout + done.stderr
    starter = f"exercises/exercise_{solution.stem[-2:]}.ipynb"
    done = environment.run("-m", "gpulesson", "check", starter, folder=course, network=False)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.slow
def test_a_notebook_installs_the_package_from_the_folder_and_runs(environment, course):
    uninstall(environment)
    run = environment.run(str(RUNNER), "01_is_there_a_gpu.ipynb", folder=course / "lessons")
    assert run.returncode == 0, run.stderr
    first, *others = code_of(course / "lessons" / "01_is_there_a_gpu.ipynb")
    assert "Installing from file://" in str(first.outputs) and all(cell.outputs for cell in others[:1])


@pytest.mark.slow
@pytest.mark.thorough
def test_an_exercise_is_checked_by_the_last_cell_of_its_notebook(environment, course):
    environment.install("-r", "requirements.txt", folder=course)
    run = environment.run(str(RUNNER), "exercise_03.ipynb", folder=course / "exercises")
    assert run.returncode == 0, run.stderr
    *_, check = code_of(course / "exercises" / "exercise_03.ipynb")
    assert "does nothing yet. That is next." in str(check.outputs), "the starter's functions"


@pytest.mark.slow
@pytest.mark.parametrize(
    "reason", ["it is not there", pytest.param("ended with status", marks=pytest.mark.thorough)]
)
def test_where_nothing_can_be_installed_the_first_cell_stops_the_notebook(
    reason, environment, course, tmp_path
):
    """Without the package's file; and with it, but neither a network nor what the lessons use."""
    uninstall(environment, *(["tqdm"] if reason == "ended with status" else []))
    shutil.copy(course / "lessons" / "04_training_loop.ipynb", tmp_path)
    if reason == "ended with status":
        shutil.copy(*course.glob("*.whl"), tmp_path)
    run = environment.run(str(RUNNER), "04_training_loop.ipynb", folder=tmp_path, network=False)
    assert run.returncode != 0
    message = run.stderr.rpartition("This notebook cannot run yet. Missing: ")[2]  # behind the cell's code
    assert message.startswith("gpulesson") and reason in message, run.stderr
    assert "optimizer" not in run.stderr, "a later cell ran"


def uninstall(environment: Environment, *others: str) -> None:
    command = [environment.uv, "pip", "uninstall", "--quiet", "--python", str(environment.python)]
    subprocess.run([*command, "gpulesson", *others], check=True)


def code_of(path: Path) -> list[nbformat.NotebookNode]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in nbformat.from_dict(notebook).cells if cell.cell_type == "code"]
