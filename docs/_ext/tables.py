"""Facts about the lessons, and the tables that show them: the syllabus, and the covered facts.

Sphinx's metadata of each page keep them. A table is filled in when every lesson has been read. `table` makes
the other tables of the site, too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import ExtensionMetadata

from .boxes import anchor, covers, exercise, overview

logger = logging.getLogger(__name__)

NUMBER = re.compile(r"[-−+±≤≥]?\d[\d,]*(\.\d+)?( ?(%|×|min|s|ms|µs|kB|MB|GB))?")


@dataclass(frozen=True)
class Lesson:
    """One row of the syllabus; times in minutes."""

    title: str
    summary: str
    teaching: int
    exercises: int


def collect(app: Sphinx, document: nodes.document) -> None:
    """Keep a page's row of the syllabus, and the titles of its sections that cover facts."""
    about = app.env.metadata[app.env.docname]
    for box in document.findall(overview):
        about["lesson"] = read_lesson(box, document)
    for node in document.findall(covers):
        for fact in node["facts"]:
            if fact in about.setdefault("covers", {}):
                logger.warning("covers: %s stands on this page more than once", fact, location=node)
            about["covers"][fact] = section_title(node)


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


def noted(env: BuildEnvironment, key: str) -> list[tuple[str, Any]]:
    """Return what `collect` kept, by page."""
    return sorted((page, about[key]) for page, about in env.metadata.items() if key in about)


class listing(nodes.General, nodes.Element):
    """The place of a table of the lessons; `table` is the name of the directive."""


class Listing(SphinxDirective):
    """Leaves a place for a table, which is filled in when all lessons have been read.

    The content of ``coverage-table`` lists the facts: ``S0.1 every lesson says how long it takes``.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        facts = dict(line.split(maxsplit=1) for line in self.content if line.strip())
        node = listing("", table=self.name, facts=facts)
        self.set_source_info(node)
        self.env.metadata[self.env.docname]["lists_lessons"] = True
        return [node]


class FillListings(SphinxPostTransform):
    """Put the tables in their places, before the theme wraps tables for narrow screens."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(listing)):
            rows = self.syllabus() if node["table"] == "syllabus" else self.coverage(node["facts"])
            node.replace_self(table(rows, node["table"]))

    def syllabus(self) -> Iterator[list[Any]]:
        lessons = noted(self.env, "lesson")
        yield ["Lesson", "Teaching", "Exercises"]
        for docname, lesson in lessons:
            title = [self.link(docname, "", lesson.title), nodes.Text(lesson.summary)]
            yield [title, f"{lesson.teaching} min", f"{lesson.exercises} min"]
        teaching = sum(lesson.teaching for _, lesson in lessons)
        exercises = sum(lesson.exercises for _, lesson in lessons)
        yield [f"Together: {teaching + exercises} minutes", f"{teaching} min", f"{exercises} min"]

    def coverage(self, facts: dict[str, str]) -> Iterator[list[Any]]:
        covered = noted(self.env, "covers")
        for doc, fact in ((doc, fact) for doc, sections in covered for fact in sections.keys() - facts):
            message = "covers: there is no fact %r; %s has %s"
            logger.warning(message, fact, self.env.docname, ", ".join(facts), location=doc)
        yield ["Id", "Fact", "Shown in"]
        for fact, words in facts.items():
            places = [(doc, sections[fact]) for doc, sections in covered if fact in sections]
            links = [self.link(doc, anchor(fact), self.names(doc, section)) for doc, section in places]
            yield [fact, words, links or "no lesson yet"]

    def names(self, docname: str, section: str) -> str:
        """Name a lesson and a section, or the lesson alone if the section is the whole lesson."""
        lesson = self.env.titles[docname].astext()
        return lesson if section == lesson else f"{lesson}: {section}"

    def link(self, docname: str, target: str, text: str) -> nodes.reference:
        return make_refnode(self.app.builder, self.env.docname, docname, target, nodes.Text(text))


def table(rows: Iterable[list[Any]], name: str) -> nodes.table:
    """Make a table of texts and links, its head first; columns of numbers are aligned to the right."""
    texts = list(rows)
    numbers = [all_numbers(column[1:]) for column in zip(*texts, strict=True)]
    head, *body = [nodes.row("", *map(cell, row, numbers)) for row in texts]
    columns = [nodes.colspec(colwidth=1) for _ in head]
    group = nodes.tgroup("", *columns, nodes.thead("", head), nodes.tbody("", *body), cols=len(head))
    return nodes.table("", group, classes=[name])


def all_numbers(column: Sequence[Any]) -> bool:
    """Return whether a column has only numbers, with or without a unit, and empty cells.

    Examples
    --------
    >>> all_numbers(["1,204", "", "3.5 ms"]), all_numbers(["2.15.0"]), all_numbers([""])
    (True, False, False)
    """
    filled = [content for content in column if content != ""]
    return bool(filled) and all(isinstance(text, str) and NUMBER.fullmatch(text) for text in filled)


def cell(content: str | list[nodes.Node], number: bool) -> nodes.entry:
    """Make a cell of a text, or of links and texts, each in its own paragraph."""
    paragraphs = (
        [paragraph(content)]
        if isinstance(content, str)
        else [nodes.paragraph("", "", node) for node in content]
    )
    return nodes.entry("", *paragraphs, classes=["text-right"] if number else [])  # the theme's


def paragraph(text: str) -> nodes.paragraph:
    """Make a paragraph; text between backticks is code."""
    parts = [nodes.literal("", part) if i % 2 else nodes.Text(part) for i, part in enumerate(text.split("`"))]
    return nodes.paragraph("", "", *parts)


def describe_cards(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document
) -> None:
    """Put each lesson's sentence and minutes on its card, on the page of all lessons."""
    lessons = dict(noted(app.env, "lesson"))
    if "sphx-glr-thumbcontainer" not in context.get("body", ""):
        return
    soup = BeautifulSoup(context["body"], "html.parser")
    for card in soup.select(".sphx-glr-thumbcontainer"):
        docname = posixpath.join(
            posixpath.dirname(page), str(card.select("a")[0]["href"]).partition(".html")[0]
        )
        if lesson := lessons.get(docname):
            minutes = f"{lesson.teaching} min, exercise {lesson.exercises} min"
            for words in (lesson.summary, minutes):
                card.append(soup.new_tag("p", string=words))
    context["body"] = str(soup)


def refresh(app: Sphinx, env: BuildEnvironment, added: Any, changed: Any, removed: Any) -> list[str]:
    """Read the pages with tables again when any page has changed."""
    listing_pages = [docname for docname, facts in env.metadata.items() if "lists_lessons" in facts]
    return listing_pages if added or changed or removed else []


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(listing)
    app.add_directive("syllabus", Listing)
    app.add_directive("coverage-table", Listing)
    app.add_post_transform(FillListings)
    app.connect("doctree-read", collect)
    app.connect("env-get-outdated", refresh)
    app.connect("html-page-context", describe_cards)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
