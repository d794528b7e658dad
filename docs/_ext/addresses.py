"""The addresses of the site and of its repository, checked once, before anything is made from them."""

from __future__ import annotations

import re

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError
from sphinx.util.typing import ExtensionMetadata


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


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("gpulesson_repository", "", "html", str)
    app.connect("config-inited", check_addresses, priority=100)  # before anyone reads them
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
