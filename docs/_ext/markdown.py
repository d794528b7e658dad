"""A parsed text block as Markdown for notebooks.

JupyterLab, Notebook 7 and VS Code show HTML in Markdown: a box becomes a `<div class="alert alert-…">`,
which they style, a fold a `<details>`. Between the tags stand blank lines, so that the inside stays Markdown.
"""

from __future__ import annotations

import html
import re
from textwrap import indent

from docutils import nodes

from .box_nodes import fold
from .markdown_lists import Lists

ALERTS = {  # the class of a box or admonition -> the colour of its alert
    "exercise": "warning", "warning": "warning", "caution": "warning", "attention": "warning",
    "danger": "danger", "error": "danger", "keypoints": "success", "tip": "success", "hint": "success",
}  # fmt: skip


class Markdown(Lists):
    """Writes every block of a lesson; the depth says whether one stands inside a box."""

    depth = 0

    def block_title(self, node: nodes.Element) -> str:
        level, parent = 0, node.parent
        while isinstance(parent, nodes.section):
            level, parent = level + 1, parent.parent
        return f"{'#' * level} {self.spans(node)}"

    def block_paragraph(self, node: nodes.Element) -> str:
        """Write a paragraph in one line, which must not begin like a heading, a list or a quotation."""
        return re.sub(r"^(\d*)([.)#+-](?=[\s#])|>)", r"\1\\\2", self.spans(node))

    def block_image(self, node: nodes.Element) -> str:
        return self.write("span", node)

    block_reference = block_image  # a picture that is a link

    def block_rubric(self, node: nodes.Element) -> str:
        return f"**{self.spans(node)}**"

    def block_container(self, node: nodes.Element) -> str:
        return self.blocks(node.children)

    block_compound = block_figure = block_container

    def block_caption(self, node: nodes.Element) -> str:
        return f"*{self.spans(node)}*"

    def block_legend(self, node: nodes.Element) -> str:
        return self.blocks(node.children)

    def block_literal_block(self, node: nodes.Element) -> str:
        language = node.get("language") or ""
        text = node.astext()
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        return f"{fence}{'' if language in ('none', 'default') else language}\n{text}\n{fence}"

    def block_doctest_block(self, node: nodes.Element) -> str:
        return f"```pycon\n{node.astext()}\n```"

    def block_math_block(self, node: nodes.Element) -> str:
        return f"$$\n{node.astext().strip()}\n$$"

    def block_transition(self, node: nodes.Element) -> str:
        return "---"

    def block_block_quote(self, node: nodes.Element) -> str:
        return indent(self.blocks(node.children), "> ", lambda line: True)

    def block_line_block(self, node: nodes.Element) -> str:
        return "<br>\n".join(self.spans(line) for line in node.children)

    def block_Admonition(self, node: nodes.Element) -> str:
        """Write a box, or inside a box a labelled part: alerts in alerts are hard to read."""
        kinds = [type(node).__name__, *node["classes"]]
        children = list(node.children)
        own = isinstance(children[0], nodes.title)
        title = self.spans(children.pop(0)) if own else kinds[0].capitalize()
        self.depth += 1
        text = f"**{title}**\n\n{self.blocks(children)}"
        self.depth -= 1
        colour = next((ALERTS[kind] for kind in kinds if kind in ALERTS), "info")
        return text if self.depth else f'<div class="alert alert-{colour}">\n\n{text}\n\n</div>'

    block_topic = block_Admonition

    def block_fold(self, node: fold) -> str:
        summary = html.escape(node["summary"], quote=False)
        return f"<details>\n<summary>{summary}</summary>\n\n{self.blocks(node.children)}\n\n</details>"

    def block_footnote(self, node: nodes.Element) -> str:
        label, *text = node.children
        return f"<sup>{label.astext()}</sup> {self.blocks(text)}"

    def block_Invisible(self, node: nodes.Node) -> str:
        return ""

    block_covers = block_Invisible
