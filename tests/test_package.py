from __future__ import annotations

import ast
import doctest
import graphlib
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

import gpulesson

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpulesson"
MODULES = sorted(path.stem for path in SOURCE.glob("[!_]*.py"))  # the public ones

# What a module of the package may import from it. All others, and those not named here, import torch alone.
ARROWS = {
    "__init__": {"exercises", "practice"},
    "__main__": {"device", "exercises", "practice"},
    "_checks": {"device"},
    "_fashion": {"_progress"},
    "_report": {"_hardware"},
    "capture": {"_checks", "_precision"},
    "data": {"_fashion", "_standin"},
    "device": {"_hardware", "_report"},
    "evaluation": {"_checks", "device"},
    "timing": {"device"},
    "training": {"_checks", "_precision", "_progress", "device", "evaluation"},
}


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_version_is_that_of_the_metadata():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert gpulesson.__version__ == declared[1]


@pytest.mark.parametrize(
    "name", ["gpulesson", "gpulesson._report", "gpulesson._hardware"] + [f"gpulesson.{m}" for m in MODULES]
)
def test_examples_in_docstrings(name):
    failed, tried = doctest.testmod(importlib.import_module(name), extraglobs=_names(name))
    assert tried and not failed


def _names(name: str) -> dict[str, object]:
    """What the reader of an example has at hand: torch, and the module's own names."""
    import torch

    return {"torch": torch, **vars(importlib.import_module(name))}


def test_public_functions_have_examples():
    """Every public function and class that can be shown without network is shown."""
    without = set()
    for module in MODULES:
        members = vars(importlib.import_module(f"gpulesson.{module}"))
        for name, member in members.items():
            own = getattr(member, "__module__", "") == f"gpulesson.{module}"
            if own and callable(member) and not name.startswith("_") and ">>>" not in (member.__doc__ or ""):
                without.add(name)
    results_and_errors = {
        "DeviceError",
        "Checkpoint",
        "CheckpointError",
        "Images",
        "Iris",
        "History",
        "NonFiniteLossError",
        "Evaluation",
        "Timing",
    }
    assert without - results_and_errors == {"data_folder"}  # depends on the machine


def test_importing_takes_no_library_that_a_lesson_may_not_need():
    program = (
        "import sys, torch\n"  # which has taken tqdm already
        "before = set(sys.modules)\n"
        "import gpulesson\n"
        f"for name in {MODULES!r}: __import__(f'gpulesson.{{name}}')\n"
        "print(*[m for m in ('torchvision', 'sklearn', 'matplotlib', 'pooch', 'requests', 'tqdm', 'sphinx',\n"
        "                    'gpulesson.practice') if m in set(sys.modules) - before])"
    )
    assert run(sys.executable, "-c", program).split() == []


def test_importing_changes_no_global_state_and_touches_no_gpu():
    program = (
        "import torch\n"
        "def state():\n"
        "    return (torch.get_default_device(), torch.get_default_dtype(), torch.get_num_threads(),\n"
        "        torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.cuda.is_initialized(),\n"
        "        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())\n"
        "before = state()\n"
        "import gpulesson\n"
        f"for name in {MODULES!r}: __import__(f'gpulesson.{{name}}')\n"
        "assert state() == before and not torch.cuda.is_initialized()"
    )
    run(sys.executable, "-c", program)


def test_the_practice_gpu_comes_on_first_use(monkeypatch):
    import types

    stub = types.ModuleType("gpulesson.practice")
    stub.practice_gpu = object()
    monkeypatch.setitem(sys.modules, "gpulesson.practice", stub)
    assert gpulesson.practice_gpu is stub.practice_gpu
    with pytest.raises(AttributeError, match="no attribute 'practise_gpu'"):
        gpulesson.practise_gpu  # noqa: B018


def imported(path: Path) -> set[str]:
    """Return the names of the package's own modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("gpulesson.")}
    return found


def test_arrows_run_one_way():
    """Each module imports only those that it may, without a circle; the practice GPU imports no other."""
    found = {path.stem: imported(path) for path in SOURCE.glob("*.py")}
    assert {name: arrows for name, arrows in found.items() if arrows} == ARROWS
    assert set().union(*(imported(path) for path in SOURCE.glob("practice/**/*.py"))) == {"practice"}
    list(graphlib.TopologicalSorter(ARROWS).static_order())  # a circle would raise CycleError


def test_heavy_libraries_are_imported_inside_functions_only():
    """And sphinx is imported nowhere."""
    heavy = r"matplotlib|torchvision|sklearn|pooch|requests|tqdm|sphinx"
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        text = re.sub(r"if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", path.read_text(encoding="utf-8"))
        found += [
            (path.name, line) for line in re.findall(rf"^(?:import|from) (?:{heavy})\b.*", text, re.MULTILINE)
        ]
        assert not re.search(r"\bimport sphinx|from sphinx", text), path
    assert found == []


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
        "src/gpulesson/py.typed",
        "tests/test_package.py",
    } <= names
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/gpulesson").rglob("*.py")}
    assert sources | {"gpulesson/py.typed"} <= names
    assert {name.partition("/")[0] for name in names} == {
        "gpulesson",
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
