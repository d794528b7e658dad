"""The cell that installs: what it runs where something is missing, and what it says where it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from _ext.install_cell import install_gpulesson

WHEEL = "gpulesson-1.2-py3-none-any.whl"
SITE = "https://example.org/course/"


class Machine:
    """A machine whose environment has these modules, and that installs them all when it is asked to."""

    def __init__(self, monkeypatch, folder) -> None:
        self.modules, self.version = {"matplotlib", "sklearn", "torch", "tqdm"}, "1.2"
        self.modules |= {"gpulesson", "torchvision", "pip"}
        self.uv, self.status, self.commands = "/bin/uv", 0, []
        self.folder = folder
        monkeypatch.chdir(folder)
        self.folders: set[str] = set()  # which Python takes for packages without files
        monkeypatch.setattr(importlib.util, "find_spec", self.find)
        monkeypatch.setattr(importlib.metadata, "version", lambda name: self.version)
        monkeypatch.setattr(shutil, "which", lambda name: self.uv)
        monkeypatch.setattr(subprocess, "run", self.run)

    def find(self, name):
        origin = "a file" if name in self.modules else None
        return SimpleNamespace(origin=origin) if name in self.modules | self.folders else None

    def run(self, command, **_):
        self.commands.append(command)
        if not self.status:
            self.modules, self.version = self.modules | {"gpulesson", "tqdm"}, "1.2"
        return SimpleNamespace(returncode=self.status, stdout="could not reach the index\n")


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Machine:
    folder = tmp_path / "a folder" / "lessons"
    folder.mkdir(parents=True)
    return Machine(monkeypatch, folder)


def test_where_all_is_there_it_does_nothing(machine, capsys):
    install_gpulesson(WHEEL, SITE)
    assert not machine.commands and capsys.readouterr().out == ""


def test_a_folder_with_its_name_is_not_the_package(machine):
    machine.modules.remove("gpulesson")
    machine.folders.add("gpulesson")
    install_gpulesson(WHEEL, SITE)
    assert len(machine.commands) == 1


@pytest.mark.parametrize("gone", ["gpulesson", "tqdm"])
@pytest.mark.parametrize("place", [".", ".."])
def test_the_file_beside_the_notebook_or_in_the_courses_folder_comes_first(machine, place, gone, capsys):
    machine.modules.remove(gone)
    file = (machine.folder / place / WHEEL).resolve()
    file.touch()
    install_gpulesson(WHEEL, SITE)
    (command,) = machine.commands
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[-1] == f"gpulesson[lessons] @ {file.as_uri()}" and "a%20folder" in command[-1]
    assert file.as_uri() in capsys.readouterr().out


def test_a_file_above_another_folder_is_not_used(machine, monkeypatch):
    machine.modules.remove("gpulesson")
    (machine.folder.parent / WHEEL).touch()
    other = machine.folder.parent / "downloads"
    other.mkdir()
    monkeypatch.chdir(other)
    with pytest.raises(RuntimeError, match="it is not there"):
        install_gpulesson(WHEEL, "")


def test_without_a_file_it_is_the_sites_and_without_pip_it_is_uv(machine):
    machine.modules -= {"gpulesson", "pip"}
    install_gpulesson(WHEEL, SITE)
    (command,) = machine.commands
    assert command[:3] == ["/bin/uv", "pip", "install"]
    assert command[command.index("--python") + 1] == sys.executable
    assert command[-1] == f"gpulesson[lessons] @ {SITE}{WHEEL}"


def test_another_version_is_replaced(machine):
    machine.version = "1.1"
    install_gpulesson(WHEEL, SITE)
    assert len(machine.commands) == 1


@pytest.mark.parametrize(("version", "commands"), [("1.2", 0), ("1.1", 1)])
def test_a_package_on_the_path_that_is_not_installed_has_a_version(machine, monkeypatch, version, commands):
    def installed(name):
        if not machine.commands:
            raise importlib.metadata.PackageNotFoundError(name)
        return machine.version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    monkeypatch.setitem(sys.modules, "gpulesson", SimpleNamespace(__version__=version))
    install_gpulesson(WHEEL, SITE)
    assert len(machine.commands) == commands


def test_without_a_file_and_a_site_it_says_where_it_looked(machine):
    machine.modules -= {"gpulesson", "tqdm"}
    with pytest.raises(RuntimeError) as error:
        install_gpulesson(WHEEL, "")
    text = str(error.value)
    assert "Missing: gpulesson, tqdm." in text
    assert f"{WHEEL} in {machine.folder} and {machine.folder.parent}: it is not there" in text
    assert "Download it" in text and not machine.commands


def test_without_pip_and_uv_it_says_so(machine):
    machine.modules -= {"gpulesson", "pip"}
    machine.uv = None
    with pytest.raises(RuntimeError, match=r"has no pip, and there is no uv(?s:.*)uv pip install"):
        install_gpulesson(WHEEL, SITE)


def test_a_failed_installation_shows_the_command_and_its_words(machine):
    machine.modules.remove("gpulesson")
    machine.status = 1
    with pytest.raises(RuntimeError) as error:
        install_gpulesson(WHEEL, SITE)
    text = str(error.value)
    assert f"{SITE}{WHEEL}\nended with status 1, and said:\ncould not reach the index\n" in text
    assert "Is there a network?" in text


def test_an_installation_that_changes_nothing_has_failed(machine):
    machine.modules -= {"torch", "gpulesson"}
    with pytest.raises(RuntimeError, match=r"Missing: torch\."):
        install_gpulesson(WHEEL, SITE)
