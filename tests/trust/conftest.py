"""The promises are tested in full by ``nox -s trust``; in the other tests, by a few tries each.

A test has the name of its row in rows.py and counts its tries in `tally`. It fails if one of them failed, or
if there were fewer than the row promises.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rows import ROWS, Tally, write_row
from warm import POSSIBLE, WarmProcess

FOLDER = Path(__file__).parent
collect_ignore_glob = [] if POSSIBLE else ["test_[!r]*.py"]  # they need processes that fork, and limits
FEW = 0.01  # the share of the tries where nobody asked for figures


def pytest_addoption(parser):
    group = parser.getgroup("trust", "what nox -s trust says")
    group.addoption("--figures", type=Path, metavar="FILE", help="write what comes out into FILE")
    group.addoption("--tries", type=float, metavar="SHARE", help="the share of the tries to make; 1 is all")
    group.addoption("--other-python", type=Path, metavar="PYTHON", help="one that has an older PyTorch")


def option(request, name):
    """An option, or None: without this folder on pytest's command line there are no such options."""
    return request.config.getoption(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    tally = item.funcargs.get("tally")
    try:
        result = yield
    except BaseException as error:
        if tally and isinstance(error, pytest.skip.Exception) and tally.row.elsewhere:
            tally.not_run = str(error)
        elif tally:
            tally.count(repr(error))
        if tally:
            report(item, tally)
            if item.config.getoption("--figures", None) and not tally.not_run:
                pytest.fail(str(tally), pytrace=not isinstance(error, pytest.skip.Exception))
        raise
    if tally:
        report(item, tally)
        if not tally.kept:
            pytest.fail(str(tally), pytrace=False)
    return result


def report(item, tally):
    """Print the figures, if they were asked for, and write them down."""
    if item.config.getoption("--figures", None) is item.config.getoption("--tries", None) is None:
        return
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n  {tally}", end=" ")
    if file := item.config.getoption("--figures", None):
        write_row(file, name_of(item), tally)


def name_of(item):
    return item.originalname.removeprefix("test_")


@pytest.fixture
def tally(request):
    """Counts the tries of this test's row."""
    share = option(request, "--tries")
    full = 1.0 if option(request, "--figures") else FEW
    return Tally(ROWS[name_of(request.node)], full if share is None else share)


@pytest.fixture(scope="session")
def surroundings():
    """The environment in which a process finds the programs of this folder, and the package."""
    places = [str(folder) for folder in (FOLDER, FOLDER.parent, FOLDER.parents[1] / "src")]
    path = os.pathsep.join(filter(None, (*places, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(scope="session")
def warm(surroundings):
    """A process that has imported PyTorch and the programs of this folder, and forks."""
    if not POSSIBLE:
        pytest.skip("this system has no warm process")
    preload = ["torch", "torch._dynamo", "numpy", "runs", "uses"]
    with WarmProcess(preload, surroundings) as warm:
        yield warm
