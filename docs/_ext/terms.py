"""Shows the glossary's sentence for each linked term: a button opens it, without a script.

Every `:term:` becomes a button and each definition an HTML popover, which keyboard, mouse and touch can open
and close. In notebooks, on paper and in a page's description a term is plain text.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata

GLOSSARY = "glossary"  # the page with all terms
POPOVER = '<div class="definition" id="{id}" popover><p><a href="{uri}">{name}</a>: {text}</p></div>'


class term_button(nodes.inline):
    """A term in the text; `opens` is the id of its popover."""


def visit_button(translator: Any, node: term_button) -> None:
    start = '<button class="term" type="button" popovertarget="{}">'
    translator.body.append(start.format(node["opens"]))


def depart_button(translator: Any, node: term_button) -> None:
    translator.body.append("</button>")


def depend(app: Sphinx, doctree: nodes.document) -> None:
    """Read a page that links terms again when the glossary has changed."""
    if any(node["reftype"] == "term" for node in doctree.findall(addnodes.pending_xref)):
        app.env.note_dependency(str(app.env.doc2path(GLOSSARY)))


def definitions(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Return the name and the sentence of every term, by its anchor."""
    return {
        anchor: (term[0].astext(), next(item.findall(nodes.definition)).astext())
        for item in env.get_doctree(GLOSSARY).findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
        for anchor in term["ids"]
    }


def explain(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn the links to terms into buttons, and put the definitions at the end of the page."""
    words = [node for node in doctree.findall(nodes.inline) if "std-term" in node["classes"]]
    if app.builder.format != "html" or docname == GLOSSARY or not words:
        return
    known = definitions(app.env)
    used: dict[str, str] = {}
    for word in words:
        link: Any = word.parent
        anchor = link["refuri"].rpartition("#")[2]
        used[anchor] = link["refuri"]
        text = word.astext()
        button: nodes.Element = term_button("", text, opens=f"def-{anchor}")
        behind = link.next_node(descend=False, siblings=True)
        following = behind.astext() if isinstance(behind, nodes.Text) else ""
        if following[:1].strip():
            mark = following.split(maxsplit=1)[0]
            parent = link.parent  # by position: an equal text may stand further up
            parent[parent.index(link) + 1] = nodes.Text(following.removeprefix(mark))
            button = nodes.inline("", "", button, nodes.Text(mark), classes=["joined"])
        link.replace_self(button)
    for anchor, uri in used.items():
        name, text = map(escape, known[anchor])
        popover = POPOVER.format(id=f"def-{anchor}", name=name, text=text, uri=escape(uri))
        # a search for a term finds the pages about it, not each that explains it in passing
        doctree += nodes.raw("", popover, format="html", classes=["no-search"])


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(term_button, html=(visit_button, depart_button))
    app.connect("doctree-read", depend)
    app.connect("doctree-resolved", explain)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
