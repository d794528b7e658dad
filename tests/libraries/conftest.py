"""The option of ``nox -s libraries``."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--table",
        type=Path,
        metavar="FILE",
        help="no library may be missing, and what comes out of the programs that run is written into FILE",
    )


@pytest.fixture(scope="session")
def table(request):
    """The file to write, or None. Without this folder on pytest's command line there is no such option."""
    return request.config.getoption("--table", None)
