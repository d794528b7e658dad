"""Runs a lesson again when something that it depends on has changed, and accepts no lesson that did not run.

sphinx-gallery looks at the text of a lesson only. It also depends on the package, on the versions of the
libraries, on the data, on the exercise files that it shows, and on these extensions. Their digest is kept
beside the generated pages; where it differs, sphinx-gallery's mark of a finished run (`NN_name.py.md5`) goes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pooch
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery.gen_rst import md5sum_is_current
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

from .drawings import FOLDER
from .paths import examples_dir, executed_scripts, gallery_dir

STATE = "freshness.json"
LESSON_NAME = r"\d\d_\w+\.py"  # the number orders the syllabus
LIBRARIES = ("torch", "torchvision", "numpy", "scikit-learn", "matplotlib", "sphinx", "sphinx-gallery")
ENVIRONMENT = ("GPULESSON_DATA", "GPULESSON_DEVICE", "OMP_NUM_THREADS")


def forget_outdated(app: Sphinx) -> None:
    """Before the gallery: remove what belongs to no lesson, and the mark of every outdated run."""
    generated = gallery_dir(app)
    known = read_state(generated)
    known = known if known.get("data") == data_digest() else {}
    app.env.gpulesson_digests = digests = lesson_digests(app)  # type: ignore[attr-defined]
    sources = executed_scripts(app)
    for copy in sorted(generated.rglob("*.py")):  # made by sphinx-gallery when it ran the lesson
        name = copy.relative_to(generated).as_posix()
        if name not in sources:
            remove_lesson(copy)
        elif known.get(name) != digests[name] or not is_current(copy, sources[name]):
            forget(copy)


def check_ran(app: Sphinx) -> None:
    """After the gallery: every lesson has run to its end, now or earlier; remember what it ran with."""
    generated = gallery_dir(app)
    # sphinx-gallery reports these, with a warning each
    failing = {Path(script).name for script in app.config.sphinx_gallery_conf["failing_examples"]}
    problems = [
        f"{name}: {problem}"
        for name, script in executed_scripts(app).items()
        if script.name not in failing
        and (problem := why_not(script, generated / name, numbered="/" not in name))
    ]
    if problems:
        raise ExtensionError("Lessons that ran nothing:\n" + "\n".join(problems))
    if app._warncount > len(failing):  # a construct that a notebook cannot show, say: warn again next time
        (generated / STATE).unlink(missing_ok=True)
        return
    state = {**app.env.gpulesson_digests, "data": data_digest()}  # type: ignore[attr-defined]
    text = json.dumps(state, indent=1)
    (generated / STATE).write_text(text + "\n", encoding="utf-8")


def lesson_digests(app: Sphinx) -> dict[str, str]:
    """Digest all that each lesson depends on, other than its own text and the data."""
    conf = Path(app.confdir) / "conf.py"
    common = [*map(fingerprint, [conf, *modules(app)]), *map(installed, LIBRARIES)]
    common += [f"{name}={os.environ.get(name)}" for name in ENVIRONMENT]
    scripts = executed_scripts(app).items()
    return {name: digest([*common, *map(fingerprint, shown_files(app, path))]) for name, path in scripts}


def modules(app: Sphinx) -> list[Path]:
    """Every module of these extensions, and of the package that the lessons import."""
    packages = [Path(app.confdir) / folder for folder in app.config.gpulesson_packages]
    return [path for folder in (Path(__file__).parent, *packages) for path in folder.rglob("*.py")]


def shown_files(app: Sphinx, script: Path) -> list[Path]:
    """Find the files that a lesson shows, and its notebook therefore contains: programs and drawings."""
    directives = r"(?::(?:starter|file):|\.\. (?:drawing|script)::)\s*(\S+)"
    names = set(re.findall(directives, script.read_text(encoding="utf-8")))
    folders = [examples_dir(app) / folder for folder in ("exercises", "solutions", "scripts")]
    folders.append(Path(app.srcdir, FOLDER))
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


def is_current(copy: Path, script: Path) -> bool:
    """Return whether sphinx-gallery ran this very text to its end."""
    return copy.read_bytes() == script.read_bytes() and bool(md5sum_is_current(copy, mode="t"))


def why_not(script: Path, copy: Path, numbered: bool) -> str:
    """Say why a lesson cannot have run; an empty text means that it has."""
    if numbered and not re.fullmatch(LESSON_NAME, script.name):
        return "the name of a lesson is two digits, an underscore and words, like 04_name.py"
    _, blocks = split_code_and_text_blocks(script)
    if not any(ast.parse(block.content).body for block in blocks if block.type == "code"):
        return "there is no code in it"
    if not is_current(copy, script):
        return "it was not executed, in this build or before (is plot_gallery off?)"
    return ""


def read_state(generated: Path) -> dict[str, Any]:
    """Read what the last build left; nothing, or anything else than JSON, means that all lessons run."""
    try:
        state = json.loads((generated / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def forget(copy: Path) -> None:
    """Remove the mark of a run, and the thumbnail, which sphinx-gallery keeps if a new run has no figure."""
    thumbnails = copy.parent.glob(f"images/thumb/*_{copy.stem}_thumb.*")
    for path in [copy.with_name(f"{copy.name}.md5"), *thumbnails]:
        path.unlink(missing_ok=True)


def remove_lesson(copy: Path) -> None:
    """Remove the pages and pictures of a lesson that was renamed or deleted."""
    for path in [*copy.parent.glob(f"{copy.stem}.*"), *copy.parent.glob(f"images/**/sphx_glr_{copy.stem}_*")]:
        path.unlink()


def remove_pages(
    app: Sphinx, env: BuildEnvironment, added: Any, changed: Any, removed: set[str]
) -> list[str]:
    """Remove the HTML of a page whose source is gone; Sphinx leaves it on the site."""
    for page in removed if app.builder.format == "html" else ():
        Path(app.outdir, f"{page}.html").unlink(missing_ok=True)
    return []


def forget_warnings(app: Sphinx, exception: Exception | None) -> None:
    """Read every page again after a build with warnings: else the next build would be silent about them."""
    if app._warncount:
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value(
        "gpulesson_packages", [], "", types=[list], description="folders whose change re-runs lessons"
    )
    app.connect("builder-inited", forget_outdated, priority=400)  # sphinx-gallery runs the lessons at 500
    app.connect("builder-inited", check_ran, priority=600)
    app.connect("env-get-outdated", remove_pages)
    app.connect("build-finished", forget_warnings)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
