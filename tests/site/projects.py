"""Tiny real projects: a folder with a conf.py, lessons and pages, built by a real sphinx-build."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from bs4 import BeautifulSoup
from processes import run
from warm import WarmProcess

ROOT = Path(__file__).parents[2]

# what a build imports, for the process whose forks build
PRELOADED = [
    "sphinx.cmd.build",
    "sphinx.builders.html",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "furo",
    "bs4",
    "hatchling.builders.wheel",
    "matplotlib.pyplot",
    "pygments.lexers.python",
    "pygments.styles.default",
    "torch",
]

CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "docs")!r})
ours = ["accessible", "boxes", "drawings", "freshness", "notebooks", "paths", "search", "tables", "terms"]
extensions = ["sphinx_gallery.gen_gallery", *[f"_ext.{{name}}" for name in ours]]
templates_path = [{str(ROOT / "docs" / "_templates")!r}]
html_theme = "furo"
suppress_warnings = ["sphinx_gallery.duplicate_filename"]
ogp_social_cards = {{"enable": False}}
gpulesson_packages = ["package"]
sphinx_gallery_conf = {{
    "examples_dirs": "../examples", "gallery_dirs": "lessons", "filename_pattern": r"/\\d\\d_\\w+\\.py$",
    "within_subsection_order": "FileNameSortKey", "write_computation_times": False, "show_signature": False,
}}
"""
INDEX = """
Home
====

.. toctree::

   lessons/index
   tables
"""
TABLES = """
Tables
======

.. syllabus::

.. coverage-table::

   S0.1 one thing
   S0.2 two
   S0.3 three
   S1.1 and another
   S1.2 the last
"""


def lesson(
    title: str = "A lesson", *, teaching: int = 10, exercises: int = 5, text: str = "", body: str = ""
) -> str:
    """Write a whole lesson; `body` is more of its script, `text` goes into its docstring."""
    return dedent('''\
        """
        {title}
        {line}

        Learn *one* thing with ``code``.

        .. overview::
           :teaching: {teaching}
           :exercises: {exercises}

           .. objectives::

              - Know why.

        {text}
        """

        print("it ran")

        # %%
        # .. exercise:: Do it
        #    :minutes: {exercises}
        #    :difficulty: easy
        #    :starter: 01_task.py
        #
        #    1. Predict.
        #    2. Run.
        #
        # .. solution::
        #    :file: 01_task.py
        #
        #    Because.
        #
        # .. keypoints::
        #
        #    - It is so.
        {body}
        ''').format(
        title=title, line="=" * len(title), teaching=teaching, exercises=exercises, text=text, body=body
    )  # fmt: skip


@dataclass(frozen=True)
class Build:
    """What a run of sphinx-build left."""

    status: int
    log: str

    def warnings(self) -> list[str]:
        return re.findall(r"WARNING: (.+)", self.log)


class Project:
    """A tiny project; `write` its files, `build` it, read `page` and `notebook`.

    Parameters
    ----------
    folder : Path
    warm : WarmProcess, optional
        A process that has imported Sphinx: a build is a fork of it. Without one, a build is a process of its
        own, which takes seconds to import the same.
    """

    def __init__(self, folder: Path, warm: WarmProcess | None) -> None:
        self.folder, self.warm = folder, warm
        self.write("conf.py", CONF)
        self.write("docs/index.rst", INDEX)
        self.write("docs/tables.rst", TABLES)
        self.write("examples/GALLERY_HEADER.rst", "Lessons\n=======\n\nAll of them.\n")
        self.write("examples/exercises/01_task.py", 'print("the starter")\n')
        self.write("examples/solutions/01_task.py", 'print("the solution")\n')

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def build(self, *options: str, **environment: str) -> Build:
        arguments = ["-W", "--keep-going", "-c", ".", *options, "docs", "out"]
        surroundings = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GPULESSON_")},
            "NO_COLOR": "1",
            **environment,
        }
        warm = None if "PYTHONPATH" in environment else self.warm  # only a new interpreter obeys that
        done = run(
            warm,
            "sphinx.cmd.build:main",
            arguments,
            instead=["-m", "sphinx", *arguments],
            folder=self.folder,
            environment=surroundings,
            together=True,
        )
        return Build(done.returncode, done.stdout)

    def keep(self) -> Path:
        """Copy the project as it is, with the ages of its files, for `restore`."""
        kept = self.folder.with_name(f"{self.folder.name}-kept")
        shutil.copytree(self.folder, kept)
        return kept

    def restore(self, kept: Path) -> None:
        """Make the project as it was: in the same folder, which Sphinx and sphinx-gallery remember."""
        shutil.rmtree(self.folder)
        shutil.copytree(kept, self.folder)

    def page(self, name: str) -> BeautifulSoup:
        return BeautifulSoup(
            (self.folder / "out" / f"{name}.html").read_text(encoding="utf-8"), "html.parser"
        )
