"""Links names of PyTorch, NumPy, matplotlib and Python in running text to their manuals.

The inventories in ``docs/manuals`` list the names that these pages use, and where each is explained. In text,
the first mention of a name on a page becomes a link, with or without a role. Code has no such links, which
would make the longest lessons too heavy.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.intersphinx import InventoryAdapter
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery._doctree_links import code_links_block

from .boxes import summary

# as lessons write them, after `from torch import nn` and the like
SHORT = {"nn.": "torch.nn.", "np.": "numpy.", "DataLoader": "torch.utils.data.DataLoader"}
NAME = re.compile(r"([a-zA-Z_][\w.]*)(\(.*\))?")
# no links inside these
NO_LINK = (nodes.title, nodes.term, nodes.reference, addnodes.pending_xref, addnodes.desc_signature, summary)


class LinkNames(SphinxPostTransform):
    """Link the first mention of each name on a page, and none in code."""

    default_priority = 900  # sphinx-gallery has linked the names in code, Sphinx those with roles
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for block in self.document.findall(code_links_block):
            for link in list(block.findall(nodes.reference)):
                if "://" in link.get("refuri", ""):
                    link.replace_self(link.children)
        known = InventoryAdapter(self.env).main_inventory
        addresses = {name: item.uri for names in known.values() for name, item in names.items()}
        linked = {link.get("refuri") for link in self.document.findall(nodes.reference)}
        for literal in list(self.document.findall(nodes.literal)):
            address = addresses.get(full_name(literal.astext()))
            if address is None or address in linked or within(literal, NO_LINK):
                continue
            linked.add(address)
            link = nodes.reference("", "", refuri=address, internal=False)
            literal.replace_self(link)
            link += literal


def full_name(text: str) -> str:
    """Return the full name that a literal mentions, or an empty text.

    Examples
    --------
    >>> full_name("nn.Linear"), full_name("torch.load(path)"), full_name("x = 1")
    ('torch.nn.Linear', 'torch.load', '')
    """
    found = NAME.fullmatch(text)
    if not found:
        return ""
    name = found[1]
    return next(
        (long + name.removeprefix(short) for short, long in SHORT.items() if name.startswith(short)), name
    )


def within(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    """Return whether a node is inside one of these."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("sphinx.ext.intersphinx")
    app.add_post_transform(LinkNames)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
