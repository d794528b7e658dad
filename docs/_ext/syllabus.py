"""What the lessons say about themselves, collected page by page; tables.py shows it.

A Sphinx domain keeps it, so that Sphinx purges and merges it with everything else it knows of a page.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains import Domain
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

from .boxes import covers, exercise, overview

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lesson:
    """One row of the syllabus; times in minutes."""

    title: str
    summary: str
    teaching: int
    exercises: int


class LessonDomain(Domain):
    """Lessons by page, and by page the facts that it covers with the titles of their sections."""

    name = "lesson"
    label = "Lesson"
    initial_data: ClassVar[dict[str, dict[str, Any]]] = {"lessons": {}, "covers": {}}
    data_version = 2

    def clear_doc(self, docname: str) -> None:
        for part in self.initial_data:
            self.data[part].pop(docname, None)

    def merge_domaindata(self, docnames: Set[str], otherdata: dict[str, Any]) -> None:
        for part in self.initial_data:
            self.data[part].update({doc: found for doc, found in otherdata[part].items() if doc in docnames})

    def process_doc(self, env: BuildEnvironment, docname: str, document: nodes.document) -> None:
        for box in document.findall(overview):
            self.data["lessons"][docname] = read_lesson(box, document)
        facts = [(fact, node) for node in document.findall(covers) for fact in node["facts"]]
        for fact, node in facts:
            self.check(fact, [name for name, _ in facts].count(fact), node)
        if facts:
            self.data["covers"][docname] = {fact: section_title(node) for fact, node in facts}

    def check(self, fact: str, times: int, node: covers) -> None:
        text, _, number = fact.partition(".")
        known = self.env.config.gpulesson_facts
        if not re.fullmatch(r"[1-9]\d*", number) or int(number) > known.get(text, 0):
            ranges = ", ".join(f"{text}.1 to {text}.{last}" for text, last in known.items())
            logger.warning("covers: there is no fact %r; there are %s", fact, ranges, location=node)
        if times > 1:
            logger.warning("covers: %s stands on this page more than once", fact, location=node)


def section_title(node: nodes.Node) -> str:
    """Find the title above a node."""
    while not isinstance(node, nodes.section):
        node = node.parent
    return node[0].astext()


def read_lesson(box: overview, document: nodes.document) -> Lesson:
    """Read the row of a lesson: its title, the sentence under it, its minutes."""
    section = next(document.findall(nodes.section))
    summary = next((node for node in section.children[1:] if not isinstance(node, nodes.Invisible)), None)
    if not isinstance(summary, nodes.paragraph):
        logger.warning("overview: a lesson needs one sentence below its title", location=section)
    minutes = [node["minutes"] or 0 for node in document.findall(exercise)]
    if sum(minutes) != box["exercises"]:
        message = "overview: announces %d minutes of exercises, but the exercises say %s"
        logger.warning(message, box["exercises"], " + ".join(map(str, minutes)) or "nothing", location=box)
    words = summary.astext() if summary else ""
    return Lesson(section[0].astext(), " ".join(words.split()), box["teaching"], box["exercises"])


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("gpulesson_facts", {}, "env", types=[dict], description="{'S0': 7} for S0.1 to S0.7")
    app.add_domain(LessonDomain)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
