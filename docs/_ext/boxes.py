"""The boxes of a lesson, with its questions and exercises, what is folded, and the marks of covered facts.

Every box is a docutils admonition with its own class, by which the theme styles it and the notebook
recognises it. What a reader unfolds is a `fold`: an answer, a solution, a cell that begins with `# fold:`;
Sphinx makes a `<details>` of it. Starters, solutions and whole scripts are files, which can be downloaded and
tested.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.code import container_wrapper
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .cells import FOLDED
from .paths import examples_dir, gallery_dir

logger = logging.getLogger(__name__)

LABELS = {
    "objectives": "You will",
    "prereq": "You need",
    "keypoints": "Key points",
}
DIFFICULTIES = ("easy", "medium", "hard")
VERDICTS = {"Yes": "right", "No": "wrong"}  # first word of the comment on an answer -> class of its fold


class summary(nodes.Part, nodes.TextElement):
    """The line of a fold that stays visible. It is not a title, which a search would take for a heading."""


def visit_summary(translator: Any, node: summary) -> None:
    translator.body.append(translator.starttag(node, "summary", ""))


def depart_summary(translator: Any, node: summary) -> None:
    translator.body.append("</summary>\n")


def fold(line: str | Sequence[nodes.Node], *content: nodes.Node, kind: str) -> nodes.admonition:
    """Make a fold, of which one line stays visible."""
    head = summary("", "", *([nodes.Text(line)] if isinstance(line, str) else line))
    return nodes.admonition("", head, *content, classes=["fold", *kind.split()], collapsible="closed")


class FoldCells(SphinxTransform):
    """Fold the cells that begin with `# fold: …`; that text becomes the visible line."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            first, _, rest = block.astext().lstrip("\n").partition("\n")
            if first.startswith(FOLDED):
                code = block.copy()
                code.rawsource = rest.strip("\n")
                code += nodes.Text(code.rawsource)
                title = first.removeprefix(FOLDED).strip()
                block.replace_self(fold(title, code, kind="code"))


class Box(SphinxDirective):
    """A box whose label follows from the name of the directive."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [self.box(nodes.admonition(), LABELS[self.name])]

    def box(self, box: nodes.admonition, label: str, facts: str = "") -> nodes.admonition:
        """Fill a box: its label, a line of facts, the content of the directive."""
        self.assert_has_content()
        self.set_source_info(box)
        box["classes"] += ["box", self.name]
        inline, messages = self.parse_inline(label)
        box += nodes.title(label, "", *inline)
        if facts:
            line, more = self.parse_inline(facts)
            box += nodes.paragraph(facts, "", *line, classes=["facts"])
            messages += more
        box += [*messages, *self.parse_content_to_nodes()]
        return box

    def fold(self, title: str, *content: nodes.Node) -> nodes.admonition:
        node = fold(title, *content, kind=self.name)
        self.set_source_info(node)
        return node


class overview(nodes.admonition):
    """Opens a lesson; `teaching` and `exercises` are its minutes."""


class Overview(Box):
    """Minutes and objectives of the lesson, and what a reader needs before it."""

    option_spec: ClassVar[Any] = {
        "teaching": directives.nonnegative_int,
        "exercises": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        if set(self.options) != set(self.option_spec):
            raise self.error("overview needs both options, in minutes: ':teaching: 10' and ':exercises: 5'")
        facts = "Teaching: {teaching} min · Exercises: {exercises} min".format(**self.options)
        return [self.box(overview("", **self.options), "Overview", facts)]


class Measured(Box):
    """What others measured and published: on which hardware, who, where, and when."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = {"source": directives.uri, "date": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        if set(self.options) != set(self.option_spec):
            raise self.error("measured needs ':source:', an address, and ':date:', when it was published")
        facts = "{date} · `the source <{source}>`__".format(**self.options)
        return [self.box(nodes.admonition(), f"Measured {self.arguments[0]}", facts)]


class question(nodes.admonition):
    """A question with answers to choose from, of which one is right."""


class Question(Box):
    """A question; each answer has its explanation in a fold."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        box = self.box(question(""), self.arguments[0])
        answers = box.pop()
        if not isinstance(answers, nodes.bullet_list):
            raise self.error(
                "a question holds a list: each item an answer, and below it a paragraph about it"
            )
        box += [self.answer(item) for item in answers.children]
        if sum("right" in answer["classes"] for answer in box.findall(nodes.admonition)) != 1:
            raise self.error("one answer must be right: the paragraph about it begins with 'Yes'")
        return [box]

    def answer(self, item: nodes.Node) -> nodes.admonition:
        choice, *about = item.children
        verdict = VERDICTS.get(re.split(r"\W", about[0].astext(), maxsplit=1)[0]) if about else None
        if verdict is None:
            raise self.error(
                f"about the answer {choice.astext()!r}: a paragraph that begins with 'Yes' or 'No'"
            )
        return fold(choice.children, *about, kind=f"answer {verdict}")


class FileBox(Box):
    """A box that shows a file of examples/exercises, examples/solutions or examples/scripts."""

    def source(self, folder: str, name: str) -> list[nodes.Node]:
        """Show a file of that folder, with a link to download it from the page."""
        examples = os.path.relpath(examples_dir(self.env.app) / folder, self.env.srcdir)
        files = {name: f"/{examples}/{name}"}
        notebook = gallery_dir(self.env.app) / folder / f"{Path(name).stem}.ipynb"
        if notebook.is_file():
            files[notebook.name] = f"/{os.path.relpath(notebook, self.env.srcdir)}"
        links = " or ".join(f":download:`{file} <{path}>`" for file, path in files.items())
        return self.parse_text_to_nodes(
            f".. literalinclude:: {files[name]}\n   :language: python\n\n"
            f".. rst-class:: page-only\n\nDownload {links}\n"
        )


class exercise(nodes.admonition):
    """A task; `minutes` is None where the lesson does not say."""


class Exercise(FileBox):
    """A task with its starter file, minutes and difficulty."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = {
        "starter": directives.unchanged_required,
        "minutes": directives.nonnegative_int,
        "difficulty": lambda argument: directives.choice(argument, DIFFICULTIES),
    }

    def run(self) -> list[nodes.Node]:
        minutes, difficulty = self.options.get("minutes"), self.options.get("difficulty")
        facts = [f"{minutes} min" if minutes is not None else "", difficulty or ""]
        node = exercise("", minutes=minutes)
        box = self.box(node, f"Exercise: {self.arguments[0]}", " · ".join(filter(None, facts)))
        if starter := self.options.get("starter"):
            box += self.fold(f"The starter, {starter}", *self.source("exercises", starter))
        return [box]


class Solution(FileBox):
    """The folded solution: the code of a file, and an explanation."""

    option_spec: ClassVar[Any] = {"file": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        file = self.options.get("file")
        code = self.source("solutions", file) if file else []
        return [self.fold("Solution", *self.parse_content_to_nodes(), *code)]


class Script(FileBox):
    """A whole script, folded; with `changed-from`, its differences from another script, not folded.

    With `in-full`, the difference shows all lines of the two scripts.
    """

    required_arguments = 1
    has_content = False
    option_spec: ClassVar[Any] = {"changed-from": directives.unchanged_required, "in-full": directives.flag}

    def run(self) -> list[nodes.Node]:
        name, before = self.arguments[0], self.options.get("changed-from")
        whole = self.fold(f"The whole script, {name}", *self.source("scripts", name))
        if not before:
            return [whole]
        changed: list[nodes.Element] = [*self.changes(before, name), whole]
        for node in changed:  # a search for their code should find the page of the other script
            node["classes"].append("no-search")
        return [*changed]

    def changes(self, before: str, name: str) -> list[nodes.Element]:
        """Show the lines that were added or removed, each group with one line around it."""
        folder = examples_dir(self.env.app) / "scripts"
        texts = []
        for path in (folder / before, folder / name):
            self.env.note_dependency(str(path))
            if not path.is_file():
                logger.warning("%s: there is no file %s", self.name, path, location=self.get_location())
                return []
            texts.append(path.read_text(encoding="utf-8").splitlines())
        around = len(texts[0]) if "in-full" in self.options else 1
        lines = list(difflib.unified_diff(texts[0], texts[1], n=around, lineterm=""))[3:]
        code = "\n".join("" if line.startswith("@@") else line for line in lines)
        block = nodes.literal_block(code, code, language="diff")
        return [container_wrapper(self, block, f"{before} → {name}")]


class Fold(Box):
    """Folded details; without a title, advice for instructors."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        return [self.fold(" ".join(self.arguments) or "For instructors", *self.parse_content_to_nodes())]


class covers(nodes.General, nodes.Element):
    """Invisible anchors of the facts that the next cells show; `facts` are their ids."""


def anchor(fact: str) -> str:
    """The anchor of a fact: `S3.6` is at `#covers-s3-6`."""
    return "covers-" + re.sub(r"\W", "-", fact.lower())


def visit_covers(translator: Any, node: covers) -> None:
    for fact in node["facts"]:
        translator.body.append(f'<span class="covers" id="{anchor(fact)}"></span>\n')
    raise nodes.SkipNode


class Covers(SphinxDirective):
    """Names the facts of the source texts that the cells below execute."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        node = covers("", facts=self.arguments[0].replace(",", " ").split())
        self.set_source_info(node)
        return [node]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(summary, html=(visit_summary, depart_summary))
    app.add_transform(FoldCells)
    app.add_node(covers, html=(visit_covers, None))
    directives_by_name = {
        **dict.fromkeys(LABELS, Box),
        "overview": Overview,
        "measured": Measured,
        "question": Question,
        "exercise": Exercise,
        "solution": Solution,
        "script": Script,
        "fold": Fold,
        "instructor-note": Fold,
        "covers": Covers,
    }
    for name, directive in directives_by_name.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
