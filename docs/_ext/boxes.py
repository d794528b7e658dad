"""The boxes of a lesson.

Every box is a docutils admonition with a class of its own, so each builder can show it, the theme styles it
and the notebook recognises it. What a reader unfolds is a `fold`. The exercises are in exercises.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .box_nodes import covers, fold, overview

LABELS = {
    "questions": "Questions",
    "objectives": "Objectives",
    "keypoints": "Key points",
    "prereq": "Before you start",
}


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
            box += nodes.paragraph(facts, facts, classes=["facts"])
        box += [*messages, *self.parse_content_to_nodes()]
        return box

    def fold(self, summary: str, *content: nodes.Node) -> fold:
        node = fold("", *content, summary=summary, classes=["fold", self.name])
        self.set_source_info(node)
        return node


class Callout(Box):
    """Something beside the path, under a title of its own."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        return [self.box(nodes.admonition(), self.arguments[0])]


class Overview(Box):
    """Minutes, questions and objectives of the lesson."""

    option_spec: ClassVar[Any] = {
        "teaching": directives.nonnegative_int,
        "exercises": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        if set(self.options) != set(self.option_spec):
            raise self.error("overview needs both options, in minutes: ':teaching: 10' and ':exercises: 5'")
        facts = "Teaching: {teaching} min · Exercises: {exercises} min".format(**self.options)
        return [self.box(overview("", **self.options), "Overview", facts)]


class InstructorNote(Box):
    """Advice for those who teach the lesson, folded."""

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        return [self.fold("For instructors", *self.parse_content_to_nodes())]


class Covers(SphinxDirective):
    """Says which facts of the source texts the lines below execute."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        node = covers("", facts=self.arguments[0].replace(",", " ").split())
        self.set_source_info(node)
        return [node]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.box_nodes")
    for name in LABELS:
        app.add_directive(name, Box)
    for name, directive in {
        "callout": Callout,
        "overview": Overview,
        "instructor-note": InstructorNote,
        "covers": Covers,
    }.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
