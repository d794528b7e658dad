"""The examples in the docstrings of the site's extensions."""

import doctest
import importlib

import pytest
from pages import ROOT

FOLDER = ROOT / "docs" / "_ext"
MODULES = [
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in sorted(FOLDER.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried and not failed
