"""Formulas as MathML, made at build time. Browsers draw it themselves: no script is fetched from anywhere."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

logger = logging.getLogger(__name__)


PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "mroot": 2, "msubsup": 3, "munderover": 3}


def mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    """Convert a formula; one that cannot be read becomes a warning, and shows its LaTeX."""
    try:
        markup = str(convert(node.astext(), display=display))
        check(markup)
        return markup
    except Exception as error:  # latex2mathml has a class for each mistake, and no common one
        logger.warning("math: cannot read %r: %r", node.astext(), error, location=node)
        return f"<code>{nodes.unescape(node.astext())}</code>"


def check(markup: str) -> None:
    """Refuse what latex2mathml lets pass: unknown commands, alignments, fractions without a denominator."""
    for element in ElementTree.fromstring(markup).iter():
        name, text = element.tag.partition("}")[2], element.text or ""
        if text.startswith("\\") or len(element) != PARTS.get(name, len(element)):
            raise ValueError(text or f"{name} of {len(element)} parts")


def visit_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(f"{number}{mathml(node, 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
