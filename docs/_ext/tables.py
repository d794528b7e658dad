"""The tables that need every lesson to have been read: the syllabus, and the facts that are covered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import ExtensionMetadata

from .boxes import anchor


class listing(nodes.General, nodes.Element):
    """Where a table of the lessons goes; `table` is the name of the directive."""


class Listing(SphinxDirective):
    """Leaves the place of a table that needs all lessons to have been read.

    The content gives the facts their words, a line each: ``S0.1 every lesson says how long it takes``.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        words = dict(line.split(maxsplit=1) for line in self.content if line.strip())
        if unknown := words.keys() - set(facts(self.config)):
            raise self.error(f"gpulesson_facts in conf.py knows no {', '.join(sorted(unknown))}")
        node = listing("", table=self.name, words=words)
        self.set_source_info(node)
        self.env.metadata[self.env.docname]["lists_lessons"] = True
        return [node]


class FillListings(SphinxPostTransform):
    """Put the tables in their places, before the theme wraps tables for narrow screens."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(listing)):
            rows = self.syllabus() if node["table"] == "syllabus" else self.coverage(node["words"])
            node.replace_self(table(rows, node["table"]))

    def syllabus(self) -> Iterator[list[Any]]:
        lessons = sorted(self.env.get_domain("lesson").data["lessons"].items())
        yield ["Lesson", "Teaching", "Exercises"]
        for docname, lesson in lessons:
            title = [self.link(docname, "", lesson.title), nodes.Text(lesson.summary)]
            yield [title, f"{lesson.teaching} min", f"{lesson.exercises} min"]
        teaching = sum(lesson.teaching for _, lesson in lessons)
        exercises = sum(lesson.exercises for _, lesson in lessons)
        yield [f"Together: {teaching + exercises} minutes", f"{teaching} min", f"{exercises} min"]

    def coverage(self, words: dict[str, str]) -> Iterator[list[Any]]:
        covered = sorted(self.env.get_domain("lesson").data["covers"].items())
        yield ["Id", "Fact", "Shown in"]
        for fact in facts(self.config):
            places = [(doc, sections[fact]) for doc, sections in covered if fact in sections]
            links = [self.link(doc, anchor(fact), self.names(doc, section)) for doc, section in places]
            yield [fact, words.get(fact, ""), links or "no lesson yet"]

    def names(self, docname: str, section: str) -> str:
        """Name a lesson and a section, or the lesson alone if the section is all of it."""
        lesson = self.env.titles[docname].astext()
        return lesson if section == lesson else f"{lesson}: {section}"

    def link(self, docname: str, target: str, text: str) -> nodes.reference:
        return make_refnode(self.app.builder, self.env.docname, docname, target, nodes.Text(text))


def facts(config: Config) -> list[str]:
    """List the ids of all facts: ``{"S0": 2}`` stands for S0.1 and S0.2."""
    return [
        f"{text}.{number}" for text, last in config.gpulesson_facts.items() for number in range(1, last + 1)
    ]


def table(rows: Iterable[list[Any]], name: str) -> nodes.table:
    """Make a table of texts and links; the first row is its head."""
    head, *body = [nodes.row("", *[cell(content) for content in row]) for row in rows]
    columns = [nodes.colspec(colwidth=1) for _ in head]
    group = nodes.tgroup("", *columns, nodes.thead("", head), nodes.tbody("", *body), cols=len(head))
    return nodes.table("", group, classes=[name])


def cell(content: str | list[nodes.Node]) -> nodes.entry:
    """Make a cell of a text, or of links and texts, one a line."""
    inline = [nodes.Text(content)] if isinstance(content, str) else content
    return nodes.entry("", *[nodes.paragraph("", "", node) for node in inline])


def refresh(app: Sphinx, env: BuildEnvironment, added: Any, changed: Any, removed: Any) -> list[str]:
    """Read the pages with tables again when any page has changed."""
    listing_pages = [docname for docname, facts in env.metadata.items() if "lists_lessons" in facts]
    return listing_pages if added or changed or removed else []


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.syllabus")
    app.add_node(listing)
    app.add_directive("syllabus", Listing)
    app.add_directive("coverage-table", Listing)
    app.add_post_transform(FillListings)
    app.connect("env-get-outdated", refresh)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
