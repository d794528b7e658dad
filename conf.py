"""Sphinx configuration; pages are in docs/, lessons in examples/:  sphinx-build -c . docs _build/html"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "docs"))
from gpulesson import __version__  # noqa: E402

project = html_title = "gpulesson"
author = "the gpulesson authors"
project_copyright = "the gpulesson authors. Texts: CC BY 4.0, code: MIT"
version = release = __version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
    "_ext.accessible",
    "_ext.boxes",
    "_ext.course",
    "_ext.drawings",
    "_ext.first_page",
    "_ext.freshness",
    "_ext.hardware",
    "_ext.manuals",
    "_ext.messages",
    "_ext.notebooks",
    "_ext.paths",
    "_ext.plays",
    "_ext.policy",
    "_ext.programs",
    "_ext.publishing",
    "_ext.recorded.pages",
    "_ext.results",
    "_ext.scripts",
    "_ext.search",
    "_ext.tables",
    "_ext.terms",
    "_ext.wheel",
]
exclude_patterns = ["_ext"]
templates_path = [str(ROOT / "docs" / "_templates")]
nitpicky = True

# -- lessons
sphinx_gallery_conf = {
    "examples_dirs": "../examples",  # this and the next: relative to docs/
    "gallery_dirs": "lessons",
    "filename_pattern": r"\.py$",  # every page is executed
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": (  # called after each cell
        "_ext.figures.scrape",
        "_ext.plays.keep",
        "_ext.recorded.pages.mark_cell",
    ),
    "reset_modules": (
        "_ext.freshness.tell_time",
        "matplotlib",
        "_ext.figures.reset",
        "_ext.torch_state.reset",
    ),
    "css": (),  # docs/_static/gpulesson.css has the few rules that are needed
    "default_thumb_file": str(ROOT / "docs" / "_static" / "thumbnail.svg"),
    "remove_config_comments": True,
    "write_computation_times": False,  # that page calls third-party servers
    "download_all_examples": False,  # docs/_ext/course.py has one file with everything
    "show_signature": False,
    "show_memory": False,
    "inspect_global_variables": False,  # else "data" in "torch.utils.data" leads to a class of ours
}
# a change here re-runs the lessons
gpulesson_packages = ["src"]

# -- API reference
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
# docstring types are prose ("float32, shape [N, 4]"), not references
napoleon_use_param = napoleon_use_rtype = False
python_use_unqualified_type_names = True
# no name in docs/manuals: Batch is a TypeVar
nitpick_ignore_regex = [
    (r"py:class", r"callable|optional|binary file|gpulesson\.(checkpoint\.autosave|device)\.Batch"),
    # of the planner, parts that are not documented one by one
    (r"py:class", r"(gpulesson_tools\.planning\.[\w.]+\.)?(Record|Floor|Unknown|Allocation)|str to int"),
    (r"py:(exc|attr)", r"ProgramFailed|Record\.events"),
    (r"py:exc", r"torch\._(dynamo|inductor)\.exc\..*"),  # not documented
]

# -- manuals of others: names that these pages use, listed by hand, so that a build asks no network
MANUALS = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
}
intersphinx_mapping = {
    name: (address, str(ROOT / "docs" / "manuals" / f"{name}.inv")) for name, address in MANUALS.items()
}

# -- publishing: without these, what needs them is left out
html_baseurl = os.environ.get("GPULESSON_SITE", "")  # of the site, such as https://OWNER.github.io/gpulesson/
# such as https://github.com/OWNER/gpulesson, and the branch there that holds the unpacked course
gpulesson_repository = os.environ.get("GPULESSON_REPOSITORY", "")
gpulesson_course_branch = os.environ.get("GPULESSON_COURSE_BRANCH", "")
ogp_social_cards = {
    "enable": bool(html_baseurl),
    "image_mini": "_static/favicon.png",
    "line_color": "#2b4f81",
}

# -- HTML
html_theme = "furo"
html_favicon = str(ROOT / "docs" / "_static" / "favicon.svg")
html_static_path = [str(ROOT / "docs" / "_static")]
html_static_path += map(str, (ROOT / "src/gpulesson_tools/porting").glob("play*.*s"))
html_css_files = [("gpulesson.css", {"priority": 900})]  # after the theme's and sphinx-gallery's
html_js_files = [("gpulesson.js", {"defer": "defer"})]
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}
html_copy_source = html_show_sourcelink = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"


def setup(app: Any) -> None:
    # The trees of all pages are one large graph with hardly any garbage in it. Searching it again and
    # again took a fifth of the pages' time. The lessons have run by then, with Python's usual settings.
    app.connect("env-before-read-docs", lambda *_: gc.disable())
    # One process resolves pages, and forks of it write them; on macOS a fork may crash.
    if sys.platform == "linux":
        app.connect("env-updated", lambda app, _: setattr(app, "parallel", 2))
