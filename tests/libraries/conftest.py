"""The option of ``nox -s libraries``, and what its tests need."""

from importlib.metadata import PackageNotFoundError, version
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


@pytest.fixture
def installed(table):
    """A function that returns the version of a library, and skips the test where it is not installed."""

    def found(library):
        try:
            return version(library)
        except PackageNotFoundError:
            if table:
                raise
            pytest.skip(f"needs {library}, which is not installed: nox -s libraries")

    return found
