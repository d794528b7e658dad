"""Runs the programs that pages show, each in a separate process, and shows what they print.

``.. run:: circle.py`` shows the command that runs a file of examples/scripts. ``.. planned:: --gpu T4`` and
``.. reviewed::`` show their content, a training script, and the command that plans or reviews it. The output
follows. ``.. film:: circle_gpu.py`` shows the film of a file of examples/scripts, below its content, which
leads to it; comments at the file's end may list variants, between which one switches. A program that fails
makes the build fail. Importing PyTorch takes most of their time, so they run while other pages are read, and
films in forks of one process; the build waits for them before it writes pages. ``.. review-list::`` lists
what a review looks for, ``.. counted::`` counts the results in a table.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.code import container_wrapper
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.build_phase import BuildPhase
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from gpulesson_tools.porting.command import Refused
from gpulesson_tools.porting.film import filmed, part
from gpulesson_tools.porting.review import TABLE
from gpulesson_tools.porting.run import NoTrial, Runs
from gpulesson_tools.programs.arguments import Program

from .freshness import digest, fingerprint, modules
from .paths import examples_dir

logger = logging.getLogger(__name__)
SCRIPT = "train.py"
AT_ONCE = ThreadPoolExecutor(2)  # programs: each imports PyTorch, with one processor
ONE_BY_ONE = ThreadPoolExecutor(1)  # films: forks of a process that has imported it


class Run(SphinxDirective):
    """A command and its output."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        folder = examples_dir(self.env.app) / "scripts"
        words = self.arguments[0].split()
        for script in map(folder.joinpath, words):
            if script.is_file():
                self.env.note_dependency(str(script))
        return self.command(words, partial(run, words, folder))

    def command(self, words: list[str], program: Callable[[], str]) -> list[nodes.Node]:
        """Start a program; show its command, and leave a place for its output."""
        line = " ".join(["python", *words])
        return [
            nodes.literal_block(line, line, language="bash"),
            self.output(
                nodes.literal_block(language="none", classes=["sphx-glr-script-out"]), AT_ONCE.submit(program)
            ),
        ]

    def output(self, place: nodes.Element, output: Future[str] | str) -> nodes.Element:
        """Return the place for an output."""
        outputs = kept(self.env).setdefault(self.env.docname, [])
        for path in modules(self.env.app):  # which the program imports
            self.env.note_dependency(str(path))
        place["program"] = len(outputs)
        outputs.append(output)
        return place


class Film(Run):
    """The film of a script; notebooks leave it out, with what leads to it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        if self.env.app.phase is BuildPhase.INITIALIZATION:  # a notebook is being made
            return []
        script = examples_dir(self.env.app) / "scripts" / self.arguments[0]
        self.env.note_dependency(str(script))
        try:
            variants = of_script(script.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self.error(f"{script.name}: {error}") from None
        place = nodes.raw(format="html", plays="film")
        film = self.output(place, once(self.env, script.name, variants))
        return [nodes.container("", *self.parse_content_to_nodes(), film, classes=["page-only"])]


def of_script(text: str) -> dict[str, str]:
    r"""Return the variants of a script by their names.

    >>> of_script("x = 1\n\n# variant: one\n# variant: two\n# - x = 1\n# + x = 2\n")
    {'one': 'x = 1', 'two': 'x = 2'}
    """
    script, *variants = re.split(r"\n+# variant: ", text.rstrip())
    found = {} if variants else {"": script}
    for variant in variants:
        name, *changes = variant.split("\n")
        lines = script.split("\n")
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            if not old.startswith("# - ") or not new.startswith("# + ") or lines.count(old[4:]) != 1:
                raise ValueError(
                    f"the variant {name!r} changes {old!r} into {new!r}, expected a line after "
                    "'# - ' that the script has once, and one after '# + '"
                )
            lines[lines.index(old[4:])] = new[4:]
        found[name] = "\n".join(lines)
    return found


def once(env: BuildEnvironment, name: str, variants: dict[str, str]) -> Future[str] | str:
    """Film a script, unless this environment has its film, made by the same sources."""
    key = sources(env.app), name, tuple(variants.items())
    if key not in films(env):
        films(env)[key] = ONE_BY_ONE.submit(film, name, variants)
    return films(env)[key]


def films(env: BuildEnvironment) -> dict[Any, Future[str] | str]:
    found: dict[Any, Future[str] | str] = vars(env).setdefault("gpulesson_films", {})
    return found


@cache
def sources(app: Sphinx) -> str:
    """Return a digest of what films are made by."""
    return digest([f"torch {version('torch')}", *map(fingerprint, modules(app))])


def film(name: str, variants: dict[str, str]) -> str:
    """Film the variants of a script, each in a folder that holds nothing else."""
    films = {}
    for label, text in variants.items():
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, name)
            program = Program(str(script), ())
            try:
                with Runs(script, program, 120, Path(folder), text.encode(), Path(folder)) as runs:
                    films[label] = filmed(runs, short=len(variants) == 1).evidence
            except (NoTrial, Refused) as reason:
                raise RuntimeError(f"the film of {name}, {label!r}: {reason}") from None
    return part(films)


def run(words: list[str], folder: Path) -> str:
    """Run Python in a folder, with one thread, since others run beside it; return its output."""
    command, environment = [sys.executable, "-X", "utf8", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout.rstrip("\n")


def run_script(words: list[str], code: str) -> str:
    """Run Python with a script, in a folder that holds nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, SCRIPT).write_text(code, encoding="utf-8")
        return run(words, Path(folder))


def kept(env: Any) -> dict[str, list[Any]]:
    """Return the outputs of each page's programs; while pages are read, futures of them."""
    found: dict[str, list[Any]] = vars(env).setdefault("gpulesson_outputs", {})
    return found


def wait(app: Sphinx, env: BuildEnvironment) -> None:
    for page, outputs in kept(env).items():
        for number, one in enumerate(outputs):
            if isinstance(one, Future):
                try:
                    outputs[number] = one.result()
                except RuntimeError as error:
                    outputs[number] = str(error)
                    logger.warning("%s", error, location=page)
    for key, one in [*films(env).items()]:
        if key[0] != sources(app) or (isinstance(one, Future) and one.exception()):
            del films(env)[key]
        elif isinstance(one, Future):
            films(env)[key] = one.result()


def show(app: Sphinx, document: nodes.document, page: str) -> None:
    for place in document.findall(nodes.Element):
        if "program" in place:
            output = kept(app.env)[page][place["program"]]
            place += nodes.Text(output)
            place.rawsource = output


def forget(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    kept(env).pop(page, None)


class Planned(Run):
    """A training script and its plan; the argument holds options of the command."""

    verb = "plan"
    has_content = True
    required_arguments = 0
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        code = "\n".join(self.content)
        script = container_wrapper(self, nodes.literal_block(code, code, language="python"), SCRIPT)
        words = ["-m", "gpulesson", self.verb, *" ".join(self.arguments).split(), SCRIPT]
        return [script, *self.command(words, partial(run_script, words, code))]


class Reviewed(Planned):
    """A training script and its review."""

    verb = "review"


class ReviewList(SphinxDirective):
    """The findings of a review: a list for each heading."""

    def run(self) -> list[nodes.Node]:
        found: dict[str, nodes.bullet_list] = {}
        for kind in TABLE.values():
            entry = nodes.list_item("", nodes.paragraph("", f"{kind.about} (lesson {kind.lesson})"))
            found.setdefault(kind.heading, nodes.bullet_list()).append(entry)
        return [
            node
            for heading, entries in found.items()
            for node in (nodes.paragraph("", "", nodes.strong("", heading)), entries)
        ]


class Counted(SphinxDirective):
    """The number of rows in a table, and of each result; arguments: file, name of the rows, column."""

    required_arguments = 3
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        name, rows, column = self.arguments
        path = Path(self.env.doc2path(self.env.docname)).with_name(name)
        self.env.note_dependency(str(path))
        with path.open(encoding="utf-8") as file:
            results = [row[column].partition(":")[0].partition(";")[0] for row in csv.DictReader(file)]
        counts = ", ".join(f"{count} {result}" for result, count in Counter(results).most_common())
        text = f"{len(results)} {rows}: {counts}."
        return [nodes.paragraph("", "", nodes.strong(text, text))]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.setup_extension("_ext.plays")  # which loads a film's player
    app.connect("env-purge-doc", forget)
    app.connect("env-updated", wait)
    app.connect("doctree-resolved", show)
    app.add_directive("run", Run)
    app.add_directive("film", Film)
    app.add_directive("planned", Planned)
    app.add_directive("reviewed", Reviewed)
    app.add_directive("review-list", ReviewList)
    app.add_directive("counted", Counted)
    return {"version": "1", "env_version": 1, "parallel_read_safe": False, "parallel_write_safe": True}
