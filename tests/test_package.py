from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from markdown_it import MarkdownIt

import gpulesson

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpulesson"
PRACTICE_GPU = ROOT / "src" / "practice_gpu"
MODULES = sorted({path.stem for path in SOURCE.glob("[!_]*.py")} - {"planning"})  # the public ones
ROOM = [f"checkpoint.{name}" for name in ("autosave", "plain", "saving", "differences")]


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("project", [ROOT, PRACTICE_GPU], ids=["gpulesson", "practice-gpu"])
def test_the_version_is_that_of_the_metadata(project):
    declared = re.search(r'^version = "(.+)"$', (project / "pyproject.toml").read_text(), re.MULTILINE)
    assert gpulesson.__version__ == declared[1]


@pytest.mark.parametrize(
    "name",
    [
        "gpulesson",
        "gpulesson._files",
        "gpulesson._hardware",
        "gpulesson._report",
        "gpulesson_tools.programs.arguments",
    ]
    + [f"gpulesson.{m}" for m in [*MODULES, *ROOM]],
)
def test_examples_in_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(name), extraglobs=_names(name))
    assert tried and not failed


def _names(name: str) -> dict[str, object]:
    """What the reader of an example has at hand: torch, and the module's own names."""
    import torch

    return {"torch": torch, **vars(importlib.import_module(name))}


def test_public_functions_have_examples():
    """Every public function and class is shown."""
    without = set()
    for module in [*MODULES, "checkpoint"]:
        members = vars(importlib.import_module(f"gpulesson.{module}"))
        for name, member in members.items():
            own = getattr(member, "__module__", "").startswith(f"gpulesson.{module}")
            if own and callable(member) and not name.startswith("_") and ">>>" not in (member.__doc__ or ""):
                without.add(name)
    results_and_errors = {
        "DeviceError",
        "Part",
        "Checkpoint",
        "CheckpointError",
        "DataError",
        "Images",
        "Iris",
        "History",
        "NonFiniteLossError",
        "Evaluation",
        "Stopped",
        "Timing",
    }
    assert not without - results_and_errors


def test_importing_takes_no_optional_library_changes_no_global_state_and_touches_no_gpu():
    program = (
        "import sys, torch\n"  # which imports tqdm
        "def state():\n"
        "    return (torch.get_default_device(), torch.get_default_dtype(), torch.get_num_threads(),\n"
        "        torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.cuda.is_initialized(),\n"
        "        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())\n"
        "before, modules = state(), set(sys.modules)\n"
        "import gpulesson\n"
        f"for name in {[*MODULES, *ROOM]!r}: __import__(f'gpulesson.{{name}}')\n"
        "assert state() == before and not torch.cuda.is_initialized()\n"
        "print(*[m for m in ('torchvision', 'sklearn', 'matplotlib', 'tqdm', 'sphinx',\n"
        "   'safetensors', 'practice_gpu', 'gpulesson_tools') if m in set(sys.modules) - modules])"
    )
    assert run(sys.executable, "-c", program).split() == []


def test_the_practice_gpu_comes_on_first_use(monkeypatch):
    import types

    stub = types.ModuleType("practice_gpu")
    stub.practice_gpu = object()
    monkeypatch.setitem(sys.modules, "practice_gpu", stub)
    assert gpulesson.practice_gpu is stub.practice_gpu
    with pytest.raises(AttributeError, match="no attribute 'practise_gpu'"):
        gpulesson.practise_gpu  # noqa: B018


def test_heavy_libraries_are_imported_inside_functions_only():
    """And sphinx is imported nowhere."""
    heavy = r"matplotlib|torchvision|sklearn|tqdm|safetensors|sphinx"
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        text = re.sub(r"if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", path.read_text(encoding="utf-8"))
        found += [
            (path.name, line) for line in re.findall(rf"^(?:import|from) (?:{heavy})\b.*", text, re.MULTILINE)
        ]
        assert not re.search(r"\bimport sphinx|from sphinx", text), path
    assert found == []


def test_the_package_index_shows_the_readme_without_what_it_does_not_have():
    """It has no other file of this folder: no picture of it, and nothing that a link could lead to."""

    def parts(text: str) -> tuple[str, list[str]]:
        page = BeautifulSoup(MarkdownIt("commonmark").enable("table").render(text), "html.parser")
        links = [tag["href"] for tag in page.find_all("a")] + [tag["src"] for tag in page.find_all("img")]
        return " ".join(page.get_text().split()), [link for link in links if "//" not in link]

    shown = ProjectMetadata(str(ROOT), PluginManager()).core
    words, links = parts((ROOT / "README.md").read_text("utf-8"))
    assert shown.readme_content_type == "text/markdown" and len(links) > 3
    assert parts(shown.readme) == (words, [])


@pytest.mark.slow
def test_wheel_and_sdist_build_and_the_wheel_installs(tmp_path):
    run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT
    )  # the wheel from the sdist
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "hatch_build.py",
        "src/gpulesson/py.typed",
        "tests/test_package.py",
    } <= names
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert sources | {"gpulesson/py.typed"} <= names
    assert {name.partition("/")[0] for name in names} == {
        "gpulesson",
        "gpulesson_tools",
        "practice_gpu",
        f"gpulesson-{gpulesson.__version__}.dist-info",
    }

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    import torch

    program = (
        "import importlib.resources, gpulesson, gpulesson.device as d, gpulesson.training\n"
        "assert importlib.resources.files('gpulesson').joinpath('py.typed').is_file()\n"
        "print(gpulesson.__version__, gpulesson.__file__, d.choose_device('cpu'))"
    )
    # torch comes from the environment of the tests; gpulesson itself must be the installed one
    environment = {**os.environ, "PYTHONPATH": str(Path(torch.__file__).parents[1])}
    version, file, device = run(python, "-c", program, env=environment, cwd=tmp_path).split()
    assert version == gpulesson.__version__ and Path(file).is_relative_to(tmp_path) and device == "cpu"
