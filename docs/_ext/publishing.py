"""Makes the site ready for a web server: what servers and search engines ask for, and links to sources.

sphinxext-opengraph describes each page. With the site's address, `html_baseurl`, there are previews, which it
draws, sitemap.xml, robots.txt, and a 404 page that works at any depth. With the address of a repository on
GitHub, `gpulesson_repository`, pages have links to edit them and to report a problem.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from xml.etree import ElementTree

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError
from sphinx.util.typing import ExtensionMetadata

LESSONS, SCRIPTS, PAGES = "lessons/", "examples/", "docs/"
NOT_FOUND = "404"
SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"


def check_addresses(app: Sphinx, config: Config) -> None:
    """Refuse a malformed address; end the site's with a slash, and the repository's without one."""
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
    """Give the template the addresses of a page's source, for a lesson its script, and of a report."""
    context["repository"] = repository = app.config.gpulesson_repository
    if repository and tree and page != NOT_FOUND:
        context["source_links"] = {
            "Edit this page": f"{repository}/edit/main/{source_of(page)}",
            "Report a problem": f"{repository}/issues/new?title={quote(page)}:",
        }


def source_of(page: str) -> str:
    """Return the file in the repository from which a page is made."""
    if not page.startswith(LESSONS):
        return f"{PAGES}{page}.rst"
    script = SCRIPTS + page.removeprefix(LESSONS)
    return f"{script.removesuffix('index')}GALLERY_HEADER.rst" if page.endswith("/index") else f"{script}.py"


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the files for search engines, and make the 404 page work at every address."""
    out, address = Path(app.outdir), app.config.html_baseurl
    if exception is None and app.builder.name == "html" and address:
        write_sitemap(app, out / "sitemap.xml")
        robots = f"User-agent: *\nDisallow:\n\nSitemap: {address}sitemap.xml\n"
        (out / "robots.txt").write_text(robots, "utf-8")
        page = out / f"{NOT_FOUND}.html"
        if page.is_file():
            page.write_text(rooted(page.read_text("utf-8"), urlsplit(address).path), "utf-8")


def write_sitemap(app: Sphinx, path: Path) -> None:
    """List the pages that have a source, each by its canonical address."""
    pages = ElementTree.Element("urlset", xmlns=SITEMAP)
    for page in sorted(app.env.found_docs - {NOT_FOUND}):
        url = ElementTree.SubElement(pages, "url")
        address = urljoin(app.config.html_baseurl, app.builder.get_target_uri(page))
        ElementTree.SubElement(url, "loc").text = address
    ElementTree.ElementTree(pages).write(path, "utf-8", xml_declaration=True)


def rooted(page: str, folder: str) -> str:
    """Make the links of a page in the site's first folder absolute, so that they work at every address.

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
    app.setup_extension("sphinxext.opengraph")
    app.connect("config-inited", check_addresses, priority=100)  # before others read them
    app.connect("html-page-context", link_to_source)
    app.connect("build-finished", finish, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
