"""Names of PyTorch and others lead to their manuals: once a page, in text, without a network."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from pages import ROOT
from projects import CONF, lesson

MANUALS = sorted((ROOT / "docs" / "manuals").glob("*.inv"))
PAGE = """
Page
====

``torch.save`` in a heading
---------------------------

Read :func:`torch.load`, ``torch.load(path)`` and ``torch.load``.
Then ``nn.Linear`` and ``nn.Linear()``, and ``nn.Line``.
"""
STABLE = "https://docs.pytorch.org/docs/stable/"


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: path.stem)
def test_every_name_of_a_manual_exists_and_is_of_its_kind(manual):
    kinds = {
        "mod": inspect.ismodule,
        "class": inspect.isclass,
        "function": lambda found: callable(found) and not inspect.isclass(found),
    }
    lines = [line.split() for line in manual.read_text("utf-8").splitlines() if not line.startswith("#")]
    for name, kind, _ in lines:
        if kind == "mod":
            importlib.import_module(name)
        if "." in name:  # else the short name of an annotation
            assert kinds[kind](pkgutil.resolve_name(name)), name
    assert lines and len({name for name, _, _ in lines}) == len(lines)


@pytest.mark.slow
def test_the_first_mention_is_a_link_and_code_has_none(project):
    mapping = {"torch": (STABLE, str(ROOT / "docs/manuals/torch.inv"))}
    added = f'extensions.append("_ext.manuals")\nnitpicky = True\nintersphinx_mapping = {mapping}\n'
    project.write("conf.py", f"{CONF}\n{added}")
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
