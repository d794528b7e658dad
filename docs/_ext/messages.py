"""The pages of error messages: the addresses of their sections, the marks of causes and fixes, the lists.

A section is found by its label. Its ``.. index::`` has other words for its message: those of older versions,
and what people type who have no message. A list shows the first, a short one. ``messages.js`` has them all,
for the search.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from textwrap import shorten

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

LABEL = "error-"
KINDS = {"Usual cause": "cause", "Fix": "fix"}  # the caption of a block -> its class
LETTERS = 46  # of a message in a list


class message_list(nodes.General, nodes.Element):
    """The place of a list; `page` is the page whose messages it has."""


class Messages(SphinxDirective):
    """Lists the messages of a page, under its headings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        page = self.arguments[0]
        self.env.note_dependency(str(self.env.doc2path(page)))
        return [message_list(page=page)]


class MessageField(SphinxDirective):
    """A field for a pasted message, below the content; both are hidden without JavaScript."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        field = (
            '<label>Paste your message, all of it:<textarea rows="3" spellcheck="false"></textarea></label>'
        )
        words = self.parse_content_to_nodes()
        return [
            nodes.container(
                "", *words, nodes.raw("", field, format="html"), classes=["search-field", "page-only"]
            )
        ]


def prepare(app: Sphinx, document: nodes.document) -> None:
    """Make a message's label its address, instead of the words of its heading; mark causes and fixes."""
    labels = {
        document.nameids[name]
        for name, written in document.nametypes.items()
        if written and name.startswith(LABEL)
    }
    for section in [section for section in document.findall(nodes.section) if labels & {*section["ids"]}]:
        section["ids"].sort(key=lambda address: address not in labels)
        section["label"] = section["ids"][0]
        section["classes"].append("message")
        for block in section.findall(nodes.container):
            if kind := KINDS.get(block[0].astext()):
                block["classes"].append(kind)


def sections(env: BuildEnvironment, page: str) -> Iterator[nodes.section]:
    return (section for section in env.get_doctree(page).findall(nodes.section) if "label" in section)


def other_words(section: nodes.section) -> list[str]:
    return [entry[1] for index in section.findall(addnodes.index) for entry in index["entries"]]


def write_for_search(app: Sphinx, env: BuildEnvironment) -> None:
    """Write page, label, heading and other words of every message beside the scripts."""
    labels = env.domains.standard_domain.anonlabels
    pages = sorted({page for label, (page, _) in labels.items() if label.startswith(LABEL)})
    found = [
        [page, section["label"], section[0].astext(), *other_words(section)]
        for page in pages
        for section in sections(env, page)
    ]
    file = Path(app.outdir, "_static", "messages.js")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"const MESSAGES = {json.dumps(found, indent=0)};\n", encoding="utf-8")


def fill_lists(app: Sphinx, document: nodes.document, page: str) -> None:
    for place in list(document.findall(message_list)):
        address = app.builder.get_relative_uri(page, place["page"])
        filled = nodes.container(classes=["messages", "no-search"])  # a search finds the sections themselves
        for part, found in groupby(sections(app.env, place["page"]), key=attrgetter("parent")):
            filled += nodes.paragraph("", "", nodes.strong(text=part[0].astext()))
            filled += nodes.bullet_list("", *[link(section, address) for section in found])
        place.replace_self(filled)


def link(section: nodes.section, page: str) -> nodes.list_item:
    message = shorten(section[0].astext(), LETTERS, placeholder=" …")
    name = next(iter(other_words(section)), message)
    to = nodes.reference(text=name, refuri=f"{page}#{section['label']}")
    return nodes.list_item("", nodes.paragraph("", "", to))


def setup(app: Sphinx) -> ExtensionMetadata:
    # before Sphinx collects titles and their addresses
    app.connect("doctree-read", prepare, priority=400)
    app.connect("env-updated", write_for_search)
    app.connect("doctree-resolved", fill_lists)
    app.add_directive("messages", Messages)
    app.add_directive("message-field", MessageField)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
