"""Makes the site ready for a web server: what servers, search engines and previews ask for; links to sources.

Always: a description of each page, robots.txt, .nojekyll and a 404 page; no source maps. With the site's
address, `html_baseurl`: a canonical link and a preview for each page, sitemap.xml, and a 404 page that works
at any depth. With the address of a repository on GitHub, `gpulesson_repository`: links to edit a page and to
report a problem.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from xml.etree import ElementTree

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from .terms import JOINED

LONGEST = 200  # characters of a description, more than search engines show
LESSONS, SCRIPTS, PAGES = "lessons/", "examples/", "docs/"
NOT_FOUND = "404"
CARD = "_static/lesson.png"
CARD_TEXT = "A part of a lesson: text, code and output"
VIEWPORT = re.compile(r'\s*<meta name="viewport"[^>]*>')  # docutils' own; the theme has one, too
SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"
SOURCE_MAP = re.compile(r"\n?(//|/\*)# sourceMappingURL=[^\s*]+(\s*\*/)?\s*$")
# pages that Sphinx makes; those of _modules have titles
MADE = {"genindex": "Index", "py-modindex": "Modules", "search": "Search", "_modules/index": "Sources"}


def add_to_head(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Describe the page, and say where it is."""
    title = unescape(re.sub("<[^>]+>", "", MADE.get(page) or context.get("title", page)))
    text = first_sentences(tree) if tree else f"{title} of {app.config.project}"
    about = {"name": {"description": text or title}, "property": {}}
    if page == NOT_FOUND:
        about["name"]["robots"] = "noindex"
        context["pageurl"] = None
    elif tree and app.config.html_baseurl:
        if page == app.config.root_doc:
            context["pageurl"] = app.config.html_baseurl
        about["name"]["twitter:card"] = "summary_large_image"
        about["property"] = {
            "og:type": "website",
            "og:title": title,
            "og:description": text or title,
            "og:url": context["pageurl"],
            "og:image": urljoin(app.config.html_baseurl, CARD),
            "og:image:alt": CARD_TEXT,
        }
    context["metatags"] = VIEWPORT.sub("", context.get("metatags", "")) + "".join(
        f'\n<meta {kind}="{name}" content="{escape(content)}">'
        for kind, contents in about.items()
        for name, content in contents.items()
    )


def first_sentences(tree: nodes.document) -> str:
    """Return the first sentence of a page's text, and those behind it that are short enough."""
    paragraphs = (one for one in tree.findall(nodes.paragraph) if isinstance(one.parent, nodes.section))
    parts = next(paragraphs, nodes.paragraph()).findall(nodes.Text)
    text = " ".join("".join(map(without_tags, parts)).split())
    chosen, *others = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    for sentence in others:
        if len(chosen) + 1 + len(sentence) > LONGEST:
            break
        chosen += f" {sentence}"
    return chosen.rstrip(":")


def without_tags(text: nodes.Text) -> str:
    """Return the words of a text, also of one that is HTML already, as a term of the glossary is."""
    if not isinstance(text.parent, nodes.raw):
        return text.astext()
    return BeautifulSoup(text.astext(), "html.parser").get_text().replace(unescape(JOINED), "")


def link_to_source(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Give the page's template links: to what a person would edit, of a lesson its script; to a report."""
    repository = app.config.gpulesson_repository
    if repository and tree and page != NOT_FOUND:
        context["source_links"] = {
            "Edit this page": f"{repository}/edit/main/{source_of(page, Path(app.confdir))}",
            "Report a problem": f"{repository}/issues/new?title={quote(page)}:",
        }


def source_of(page: str, root: Path) -> str:
    """Return the file of the repository that a page is made from, as a path from `root`."""
    source = f"{PAGES}{page}.rst"
    if page.startswith(LESSONS):
        script = SCRIPTS + page.removeprefix(LESSONS)
        source = (
            f"{script.removesuffix('index')}GALLERY_HEADER.rst" if page.endswith("/index") else f"{script}.py"
        )
    if not (root / source).is_file():
        raise FileNotFoundError(f"the page {page} should be made from {source}, which is not there")
    return source


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the files for the server, and take away what leads to files that nobody needs."""
    if exception is not None or app.builder.name != "html":
        return
    out, address = Path(app.outdir), app.config.html_baseurl
    for source_map in out.rglob("*.map"):
        source_map.unlink()
        named = source_map.with_suffix("")
        named.write_text(SOURCE_MAP.sub("\n", named.read_text("utf-8")), "utf-8")
    (out / ".nojekyll").touch()  # else GitHub leaves out the folders that begin with _
    robots = "User-agent: *\nDisallow:\n"
    (out / "sitemap.xml").unlink(missing_ok=True)
    if address:
        write_sitemap(app, out / "sitemap.xml")
        robots += f"\nSitemap: {address}sitemap.xml\n"
        page = out / f"{NOT_FOUND}.html"
        page.write_text(rooted(page.read_text("utf-8"), urlsplit(address).path), "utf-8")
    (out / "robots.txt").write_text(robots, "utf-8")


def write_sitemap(app: Sphinx, path: Path) -> None:
    """Name the pages that are written by hand, each as its canonical link does."""
    pages = ElementTree.Element("urlset", xmlns=SITEMAP)
    for page in sorted(app.env.found_docs - {NOT_FOUND}):
        target = "" if page == app.config.root_doc else app.builder.get_target_uri(page)
        url = ElementTree.SubElement(pages, "url")
        ElementTree.SubElement(url, "loc").text = urljoin(app.config.html_baseurl, target)
    ElementTree.ElementTree(pages).write(path, "utf-8", xml_declaration=True)


def rooted(page: str, folder: str) -> str:
    """Let the links of a page of the first level begin at the server's root: it is shown at every address.

    Examples
    --------
    >>> rooted('<a href="setup.html#gpu">set up</a> <a href="#top">top</a>', "/gpulesson/")
    '<a href="/gpulesson/setup.html#gpu">set up</a> <a href="#top">top</a>'
    """
    soup = BeautifulSoup(page, "html.parser")
    for name in ("href", "src", "action", "data-content_root"):
        for tag in soup.select(f"[{name}]:not([{name}^='#'])"):
            tag[name] = urljoin(folder, str(tag[name]))
    return str(soup)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.addresses")
    app.connect("html-page-context", add_to_head)
    app.connect("html-page-context", link_to_source)
    app.connect("build-finished", finish, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
