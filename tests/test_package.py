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
from contextlib import nullcontext
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from markdown_it import MarkdownIt

import gpulesson

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpulesson"
MODULES = sorted(path.stem for path in SOURCE.glob("[!_]*.py"))  # the public ones

# What a module of the package may import from it. All others, and those not named here, import torch alone.
ARROWS = {
    "__init__": {"exercises", "planning", "practice"},
    "__main__": {"device", "exercises", "planning", "practice"},
    "_bounds": {"_files"},
    "_fashion": {"_files", "_progress"},
    "_ranks": {"_arguments", "_files", "device", "evaluation"},
    "_report": {"_hardware"},
    "_shards": {"_files", "_ranks", "checkpoint"},
    "_standin": {"_files"},
    "_state": {"_files"},
    "autosave": {"_files", "_state", "checkpoint"},
    "capture": {"preflight", "step"},
    "checkpoint": {"_bounds", "_files", "_state"},
    "data": {"_fashion", "_standin"},
    "device": {"_arguments", "_hardware", "_report"},
    "distributed": {"_arguments", "_ranks", "_shards", "autosave", "checkpoint"},
    "evaluation": {"_arguments", "_state", "device", "preflight"},
    "models": {"_arguments"},
    "preflight": {"_arguments", "device"},
    "step": {"_arguments"},
    "timing": {"_arguments", "device"},
    "weights": {"_files", "_state", "checkpoint"},
    "training": {"_arguments", "_progress", "autosave", "device", "evaluation", "preflight", "step"},
}


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_version_is_that_of_the_metadata():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert gpulesson.__version__ == declared[1]


@pytest.mark.parametrize(
    "name",
    [
        "gpulesson",
        "gpulesson._files",
        "gpulesson._hardware",
        "gpulesson._ranks",
        "gpulesson._report",
        "gpulesson._shards",
    ]
    + [f"gpulesson.{m}" for m in MODULES],
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
        "Part",
        "Checkpoint",
        "CheckpointError",
        "Images",
        "Iris",
        "History",
        "NonFiniteLossError",
        "Evaluation",
        "Stopped",
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
        "                    'safetensors', 'gpulesson.practice') if m in set(sys.modules) - before])"
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


def import_graph(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package import which, by full names, at every depth.

    Imports inside functions and under ``if TYPE_CHECKING`` count. ``from package import name`` imports the
    module ``package.name`` if there is one, else ``package/__init__.py``, which is the node ``package``.
    """
    paths = {module_name(path, package): path for path in package.rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for asked, holder in imports(path):
            found = asked if asked in paths else holder
            if found.partition(".")[0] == package.name:
                assert found in paths, f"{path} imports {found}, which is no module of {package.name}"
                graph[name].add(found)
                if name.startswith(f"{found}."):  # its own package's names come from modules: a circle
                    graph[found].add(name)
    return graph


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[str, str]]:
    """Return the name that each import of a file asks for, and the module that has it if it is no module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found += [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
    return found


def imported(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return what the module imports of the package's topmost modules and subpackages."""
    return {f"{found}.__init__".split(".")[1] for found in graph[name]}


def test_arrows_run_one_way():
    """Each module imports only those that it may, without a circle; the practice GPU imports no other."""
    graph = import_graph(SOURCE)
    found = {path.stem: imported(module_name(path, SOURCE), graph) for path in SOURCE.glob("*.py")}
    assert {name: arrows for name, arrows in found.items() if arrows} == ARROWS
    practice = [name for name in graph if f"{name}.".startswith("gpulesson.practice.")]
    assert set().union(*(imported(name, graph) for name in practice)) == {"practice"}
    list(graphlib.TopologicalSorter(ARROWS).static_order())  # a circle would raise CycleError


def test_there_is_no_circle_of_imports():
    """At no depth, not inside functions, and not for types alone."""
    graph = import_graph(SOURCE)
    assert {"gpulesson.practice.errors", "gpulesson.practice.events"} <= graph["gpulesson.practice.gpu"]
    assert "gpulesson.practice" not in graph["gpulesson.practice.gpu"]  # it imports no name of __init__
    graphlib.TopologicalSorter(graph).prepare()  # a circle raises CycleError, which names it


CIRCLES = {
    "two modules": {"a": "import p.b", "b": "import p.a"},
    "inside a function": {"a": "def f():\n    from p import b", "b": "from p.a import f"},
    "for types": {
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B",
        "b": "import p.a",
    },
    "through a subpackage": {"a": "from p.s import b", "s/b": "from p.s.t.c import f", "s/t/c": "import p.a"},
    "the name is its package's": {"s/a": "from p.s import NAME", "s/__init__": "NAME = 1"},
    "the name is the package's above": {"s/a": "from p import NAME", "__init__": "NAME = 1"},
    "all names of its package": {"s/a": "from p.s import *"},
    "through another package's names": {"s/a": "from p.t import b", "t/__init__": "from p.s.a import b"},
}
STRAIGHT = {
    "a package imports its modules": {"s/__init__": "from p.s import a\nfrom p.s.b import B"},
    "and they one another": {"s/__init__": "import p.s.a, p.s.b", "s/a": "from p.s import b", "s/b": ""},
    "a package's names": {"a": "from p.s import NAME", "s/__init__": "from p.s.b import NAME", "s/b": ""},
    "other packages": {"a": "import torch.nn\nfrom torch import a", "b": "from p import a"},
}


@pytest.mark.parametrize("case", [*CIRCLES, *STRAIGHT])
def test_circles_of_imports_are_found(case, tmp_path):
    package = tmp_path / "p"
    files = {"__init__": "", "s/__init__": "", "s/a": "", "s/b": "", "s/t/__init__": ""}
    for name, text in {**files, **(CIRCLES | STRAIGHT)[case]}.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with pytest.raises(graphlib.CycleError) if case in CIRCLES else nullcontext():
        graphlib.TopologicalSorter(import_graph(package)).prepare()


def test_heavy_libraries_are_imported_inside_functions_only():
    """And sphinx is imported nowhere."""
    heavy = r"matplotlib|torchvision|sklearn|pooch|requests|tqdm|safetensors|sphinx"
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
