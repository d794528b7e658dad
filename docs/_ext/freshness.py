"""Runs a lesson again when something on which it depends has changed.

sphinx-gallery keeps a digest of a lesson's text beside its page, `NN_name.py.md5`, and runs the lesson if it
differs. A lesson also depends on the package, the versions of the libraries, the data, the files that it
shows, and these extensions: here the digest covers them all.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery import gen_rst

from .drawings import FOLDER
from .paths import examples_dir, executed_scripts, gallery_dir

logger = logging.getLogger(__name__)
STARTED = time.monotonic()
LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "matplotlib", "sphinx", "sphinx-gallery")
ENVIRONMENT = ("GPULESSON_DEVICE", "GPULESSON_SITE", "OMP_NUM_THREADS")


def watch_everything(app: Sphinx) -> None:
    """Before the gallery runs: install our digest, and remove leftovers of renamed or changed lessons."""
    generated, scripts = gallery_dir(app), executed_scripts(app)
    common = [*map(fingerprint, [Path(app.confdir) / "conf.py", *modules(app)])]
    common += [f"{library} {version(library)}" for library in LIBRARIES]
    common += [f"{name}={os.environ.get(name)}" for name in ENVIRONMENT]

    def lesson_digest(copy: str | Path, mode: str) -> str:
        own = [Path(copy), *shown_files(app, Path(copy))]
        return digest([*common, *map(fingerprint, own)])

    setattr(gen_rst, "get_md5sum", lesson_digest)  # noqa: B010  # for mypy it is a function, not a variable
    for copy in sorted(generated.rglob("*.py")):  # made by sphinx-gallery when it ran the lesson
        script = scripts.get(copy.relative_to(generated).as_posix())
        if script is None:
            remove_lesson(copy)
        elif copy.read_bytes() != script.read_bytes() or not gen_rst.md5sum_is_current(copy, mode="t"):
            # a run without a figure would keep it
            for thumbnail in copy.parent.glob(f"images/thumb/*_{copy.stem}_thumb.*"):
                thumbnail.unlink()


def tell_time(gallery_conf: dict[str, Any], script: str) -> None:
    """Log the seconds since the start before each lesson; sphinx-gallery logs its name."""
    logger.info(" (%.0f s after the start)", time.monotonic() - STARTED)


def forget_runs(app: Sphinx) -> None:
    """After the gallery: make the next build run all again if there were warnings, such as a notebook's.

    A failed lesson is a warning, too, but sphinx-gallery keeps no digest for it.
    """
    if app._warncount > len(app.config.sphinx_gallery_conf["failing_examples"]):
        for mark in gallery_dir(app).rglob("*.md5"):
            mark.unlink()


def modules(app: Sphinx) -> list[Path]:
    """Return every module of these extensions and of the packages that the lessons import, and the data."""
    packages = [Path(app.confdir) / folder for folder in app.config.gpulesson_packages]
    folders = [Path(__file__).parent, *packages]
    return [path for folder in folders for kind in ("*.py", "*-ubyte") for path in folder.rglob(kind)]


def shown_files(app: Sphinx, script: Path) -> list[Path]:
    """Find the files that a lesson shows: programs, drawings, and its recording, which its parts may need."""
    directives = r"(?::(?:starter|file):|\.\. (?:drawing|script)::)\s*(\S+)"
    text = script.read_text(encoding="utf-8")
    names = set(re.findall(directives, text))
    folders = [examples_dir(app) / folder for folder in ("exercises", "solutions", "scripts")]
    folders.append(Path(app.srcdir, FOLDER))
    found = [path for folder in folders for name in names if (path := folder / name).is_file()]
    if ".. play::" in text:
        patterns = f"{script.stem}.json", f"{script.stem}/*"
        found += [path for each in patterns for path in Path(app.srcdir, "recordings").glob(each)]
    return found


def fingerprint(path: Path) -> str:
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def remove_lesson(copy: Path) -> None:
    """Remove the pages and pictures of a lesson that was renamed or deleted."""
    for path in [*copy.parent.glob(f"{copy.stem}.*"), *copy.parent.glob(f"images/**/sphx_glr_{copy.stem}_*")]:
        path.unlink()


def forget_warnings(app: Sphinx, exception: Exception | None) -> None:
    """Make the next build read every page again after warnings, which it would not repeat otherwise."""
    if app._warncount:
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value(
        "gpulesson_packages", [], "", types=[list], description="folders whose change re-runs lessons"
    )
    app.connect("builder-inited", watch_everything, priority=400)  # sphinx-gallery runs the lessons at 500
    app.connect("builder-inited", forget_runs, priority=600)
    app.connect("build-finished", forget_warnings)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
