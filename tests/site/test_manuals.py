"""Names of PyTorch and others lead to their manuals: once a page, in text, without a network."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil

import pytest
from _ext.manuals import inventory, places
from pages import ROOT
from projects import CONF, lesson
from sphinx.util.inventory import InventoryFile

MANUALS = json.loads((ROOT / "docs" / "manuals.json").read_text(encoding="utf-8"))
PAGE = """
Page
====

``torch.save`` in a heading
---------------------------

Read :func:`torch.load`, ``torch.load(path)`` and ``torch.load``.
Then ``nn.Linear`` and ``nn.Linear()``, and ``nn.Line``.
"""
STABLE = "https://docs.pytorch.org/docs/stable/"


@pytest.mark.parametrize("name", MANUALS)
def test_every_name_of_a_manual_exists_and_is_of_its_kind(name):
    manual = MANUALS[name]
    kinds = {
        "module": inspect.ismodule,
        "class": inspect.isclass,
        "function": lambda found: callable(found) and not inspect.isclass(found),
        "exception": lambda found: inspect.isclass(found) and issubclass(found, Exception),
    }
    listed = [(kind, entry) for kind, entries in manual["names"].items() for entry in entries]
    for kind, entry in listed:
        if kind == "module":
            importlib.import_module(entry)
        assert kinds[kind](pkgutil.resolve_name(entry)), entry
    names = {entry for _, entry in listed}
    assert len(names) == len(listed) and manual["elsewhere"].keys() <= names
    assert set(manual["also"].values()) <= names


def test_sphinx_reads_an_inventory_as_it_was_meant():
    read = InventoryFile.loads(inventory("torch", MANUALS["torch"]), uri=STABLE)
    assert read["py:function", "torch.load"].uri == f"{STABLE}generated/torch.load.html#torch.load"
    assert read["py:class", "torch.Tensor"].uri == f"{STABLE}tensors.html#torch.Tensor"
    assert read["py:class", "Tensor"].uri == f"{STABLE}tensors.html#torch.Tensor"
    assert read["py:module", "torch.cuda"].uri == f"{STABLE}cuda.html#module-torch.cuda"
    assert len(read.data) == 3 and sum(map(len, read.data.values())) == len(places(MANUALS["torch"]))


@pytest.mark.slow
def test_the_first_mention_is_a_link_and_code_has_none(project):
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.manuals")\nnitpicky = True\n')
    project.write("docs/manuals.json", json.dumps({"torch": MANUALS["torch"]}))
    project.write("docs/page.rst", PAGE)
    project.write("docs/index.rst", "Home\n====\n\n.. toctree::\n\n   lessons/index\n   tables\n   page\n")
    text = "``torch.load`` reads.\n"
    project.write("examples/01_first.py", lesson(text=text, body="import torch\n\ntorch.load\ntorch.save"))
    build = project.build()
    assert build.status == 0, build.log

    def links(page: str) -> list[tuple[str, str]]:
        found = project.page(page).select("article a[href*=pytorch]")
        return [(link.get_text(), link["href"].removeprefix(f"{STABLE}generated/")) for link in found]

    load = "torch.load.html#torch.load"
    linear = ("nn.Linear", "torch.nn.Linear.html#torch.nn.Linear")
    assert links("page") == [("torch.load()", load), linear]
    assert links("lessons/01_first") == [("torch.load", load)]

    project.write("docs/page.rst", PAGE + "\n:func:`torch.loud`\n")
    assert "reference target not found: torch.loud" in project.build().log
