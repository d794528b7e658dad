"""Makes the site ready for a web server: what servers, search engines and previews ask for; links to sources.

Each page has a description. With the site's address, `html_baseurl`: a preview of each page, which
sphinxext-opengraph makes, sitemap.xml and robots.txt, and a 404 page that works at any depth. With the
address of a repository on GitHub, `gpulesson_repository`: links to edit a page and to report a problem.
"""

from __future__ import annotations

import re
from html import escape
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from xml.etree import ElementTree

from bs4 import BeautifulSoup
from docutils import nodes
from markupsafe import Markup
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError
from sphinx.util.typing import ExtensionMetadata

LESSONS, SCRIPTS, PAGES = "lessons/", "examples/", "docs/"
NOT_FOUND = "404"
DESCRIPTION = 160  # letters, of which a search engine shows as much
SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"


def check_addresses(app: Sphinx, config: Config) -> None:
    """Refuse what is no address; from here on the site's ends with a slash, and the repository's does not."""
    for name, end in ("html_baseurl", "/"), ("gpulesson_repository", ""):
        if address := config[name]:
            if not re.match(r"https?://[^/]", address):
                raise ConfigError(
                    f"{name} is {address!r}, but has to begin with https:// and a server's name"
                )
            config[name] = address.rstrip("/") + end
    if config.html_baseurl:
        app.tags.add("address")  # for  .. only:: address
        config.ogp_site_url = config.html_baseurl


def link_to_source(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Give the page's template links: to what a person would edit, of a lesson its script; to a report."""
    context["repository"] = repository = app.config.gpulesson_repository
    if repository and tree and page != NOT_FOUND:
        context["source_links"] = {
            "Edit this page": f"{repository}/edit/main/{source_of(page)}",
            "Report a problem": f"{repository}/issues/new?title={quote(page)}:",
        }


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Describe a page by its first words; with the site's address, sphinxext-opengraph does it."""
    if tree and not app.config.html_baseurl and (words := first_words(tree)):
        context["metatags"] += f'<meta name="description" content="{escape(words)}">'


def first_words(page: nodes.document) -> str:
    """Return what the paragraphs of a page begin with."""
    paragraphs = (one.astext() for one in page.findall(nodes.paragraph))
    return shorten(" ".join(islice(paragraphs, 3)), DESCRIPTION, placeholder=" …")


def source_of(page: str) -> str:
    """Return the file of the repository that a page is made from."""
    if not page.startswith(LESSONS):
        return f"{PAGES}{page}.rst"
    script = SCRIPTS + page.removeprefix(LESSONS)
    return f"{script.removesuffix('index')}GALLERY_HEADER.rst" if page.endswith("/index") else f"{script}.py"


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the files for search engines, and let the 404 page, if there is one, be shown anywhere."""
    out, address = Path(app.outdir), app.config.html_baseurl
    if exception is None and app.builder.name == "html" and address:
        write_sitemap(app, out / "sitemap.xml")
        robots = f"User-agent: *\nDisallow:\n\nSitemap: {address}sitemap.xml\n"
        (out / "robots.txt").write_text(robots, "utf-8")
        page = out / f"{NOT_FOUND}.html"
        if page.is_file():
            page.write_text(rooted(page.read_text("utf-8"), urlsplit(address).path), "utf-8")


def write_sitemap(app: Sphinx, path: Path) -> None:
    """Name the pages that are written by hand, each as its canonical link does."""
    pages = ElementTree.Element("urlset", xmlns=SITEMAP)
    for page in sorted(app.env.found_docs - {NOT_FOUND}):
        url = ElementTree.SubElement(pages, "url")
        address = urljoin(app.config.html_baseurl, app.builder.get_target_uri(page))
        ElementTree.SubElement(url, "loc").text = address
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
    app.add_config_value("gpulesson_repository", "", "html", str)
    if app.config.html_baseurl:  # not without one: it imports matplotlib, which takes its time
        app.setup_extension("sphinxext.opengraph")
    app.connect("config-inited", check_addresses, priority=100)  # before anyone reads them
    app.connect("html-page-context", describe)
    app.connect("html-page-context", link_to_source)
    app.connect("build-finished", finish, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
