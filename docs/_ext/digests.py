"""What a lesson depends on beside its own text, as digests to compare with those of the last build."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pooch
from sphinx.application import Sphinx

from .lesson_files import examples_dir, executed_scripts

LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "matplotlib", "sphinx", "sphinx-gallery")
ENVIRONMENT = ("GPULESSON_DATA", "GPULESSON_DEVICE")


def lesson_digests(app: Sphinx) -> dict[str, str]:
    """Digest all that each lesson depends on, other than its own text and the data."""
    conf, extensions = Path(app.confdir) / "conf.py", Path(__file__).parent.glob("*.py")
    common = [*map(fingerprint, [conf, *extensions, *package_files(app)]), *map(installed, LIBRARIES)]
    common += [f"{name}={os.environ.get(name)}" for name in ENVIRONMENT]
    scripts = executed_scripts(app).items()
    return {name: digest([*common, *map(fingerprint, shown_files(app, path))]) for name, path in scripts}


def package_files(app: Sphinx) -> list[Path]:
    """Every module of the package that the lessons import."""
    folders = [Path(app.confdir) / folder for folder in app.config.gpulesson_packages]
    return [path for folder in folders for path in folder.rglob("*.py")]


def shown_files(app: Sphinx, script: Path) -> list[Path]:
    """Find the exercise and solution files that a lesson shows, and its notebook therefore contains."""
    names = set(re.findall(r":(?:starter|file):\s*(\S+)", script.read_text(encoding="utf-8")))
    folders = [examples_dir(app) / folder for folder in ("exercises", "solutions")]
    return [path for folder in folders for name in names if (path := folder / name).is_file()]


def data_digest() -> str:
    """Digest which data files are there: with others, the lessons print other numbers."""
    folder = Path(os.environ.get("GPULESSON_DATA") or pooch.os_cache("gpulesson")).expanduser()
    return digest(f"{path.name} {path.stat().st_size}" for path in folder.rglob("*") if path.is_file())


def installed(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return f"{library} missing"


def fingerprint(path: Path) -> str:
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
