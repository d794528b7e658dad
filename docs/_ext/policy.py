"""Limits what a page may load and run, by a Content-Security-Policy in its head.

Scripts, styles and pictures come from the site's own files. The theme's inline scripts run, by their hashes,
and none in the page's content. Inline styles are allowed by hashes, too. ``nox -s serve`` turns the policy
off, because its server puts a script into each page.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import unescape

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

# This site, also on a disk, where browsers disagree about 'self'; a page from a server cannot read file:.
OWN = "'self' file:"
RULES = (
    "default-src 'none'",
    "base-uri 'none'",
    f"connect-src {OWN}",  # an audit asks for robots.txt from within the page
    f"font-src {OWN}",
    f"form-action {OWN}",  # the search field
    f"img-src {OWN} data:",  # icons in the styles
)
SCRIPTS = f"script-src {OWN}"
# this word lets a hash also match an element's style; styles without a hash stay forbidden
STYLES = f"style-src {OWN} 'unsafe-hashes'"


def with_policy(page: str) -> str:
    """Put the policy into a page's head, before everything that it loads."""
    of_the_theme = re.sub(r"<article.*?</article>", "", page, flags=re.DOTALL)
    scripts = re.findall(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", of_the_theme, re.DOTALL)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", page, re.DOTALL)
    styles += [unescape(style) for _, style in re.findall(r"""<[^<>]*\sstyle=("|')(.*?)\1""", page)]
    rules = [*RULES, " ".join([SCRIPTS, *hashes(scripts)]), " ".join([STYLES, *hashes(styles)])]
    policy = f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(rules)}">'
    # after the character set, which has to be in the first 1024 bytes
    return re.sub("<meta charset=[^>]*>", lambda charset: charset[0] + policy, page, count=1)


def hashes(texts: Iterable[str]) -> list[str]:
    """Return the hash of each text as a policy writes it, once, in order.

    Examples
    --------
    >>> hashes(["alert(1)", "alert(1)"])
    ["'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"]
    """
    digests = (hashlib.sha256(text.encode()).digest() for text in dict.fromkeys(texts))
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("gpulesson_policy", True, "html", bool)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
