from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, chromium, served
from filelock import FileLock
from fresh import Environment
from pages import Site, build
from playwright.sync_api import Browser
from projects import PRELOADED, Project
from warm import WarmProcess, warm_process


@pytest.fixture(scope="session")
def sphinx() -> Iterator[WarmProcess | None]:
    """The process that has imported Sphinx, and forks for a build; None where the system cannot have one."""
    with warm_process(PRELOADED) as process:
        yield process


@pytest.fixture
def project(tmp_path: Path, sphinx: WarmProcess | None) -> Project:
    return Project(tmp_path, sphinx)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, sphinx: WarmProcess | None) -> Callable[..., Project]:
    """Build a project of some files once for all tests of a module."""

    def build(files: dict[str, str], **environment: str) -> Project:
        project = Project(tmp_path_factory.mktemp("project"), sphinx)
        for name, text in files.items():
            project.write(name, text)
        build = project.build(**environment)
        assert build.status == 0, build.log
        return project

    return build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The real site, up to date; the first worker that wants it builds it for all."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers of this run
    with FileLock(folder / "site.lock"):
        if (folder / "site").exists():
            return Site(folder / "site" / "html", folder / "site" / "lessons")
        return build(folder / "site")


@pytest.fixture(scope="session")
def course(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked course, in a folder that was empty."""
    folder = tmp_path_factory.mktemp("empty")
    with zipfile.ZipFile(site.html / "gpulesson-course.zip") as archive:
        archive.extractall(folder)
    return folder / "gpulesson-course"


@pytest.fixture(scope="session")
def environment(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment in which the course's second command has run, and notebooks can."""
    uv = shutil.which("uv")
    if uv is None or os.name != "posix":
        pytest.skip("needs uv, on Linux or macOS")
    folder = tmp_path_factory.mktemp("fresh")
    fresh = Environment(folder, uv)
    fresh.install("-r", "requirements.txt", folder=course)
    fresh.install("ipykernel", "nbclient", "nbformat", folder=course)
    fresh.take_bytecode()
    yield fresh
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def address(site: Site) -> Iterator[str]:
    with served(site.html) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no Chromium on this machine")
    with chromium() as browser:
        yield browser
