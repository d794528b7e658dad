"""The Content-Security-Policy of the pages: nothing breaks it, and what is put in later does not run."""

from __future__ import annotations

import doctest
from itertools import product
from pathlib import Path

import pytest
from _ext import policy
from browser import opened, served, violations
from bs4 import BeautifulSoup
from projects import CONF, ROOT, lesson
from sampling import some

TABLE = """
A table
=======

.. list-table::
   :widths: 30 70

   * - one
     - two
"""
HTML = """
# %%
class Shown:
    def _repr_html_(self):
        return '<style>.x { color: red }</style><b class="x" style="font-size: 9px">{"shown"}</b>'

Shown()
"""


def rules(page: str) -> dict[str, list[str]]:
    soup = BeautifulSoup(page, "html.parser")
    (found,) = soup.select("head > meta[http-equiv=Content-Security-Policy]")
    return {words[0]: words[1:] for words in map(str.split, found["content"].split(";"))}


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(policy)
    assert tried and not failed


def test_the_policy_names_scripts_of_the_theme_and_styles():
    page = (
        '<html><head><meta charset="utf-8"/><link href="a.css"/></head><body><script>theme()</script>'
        '<script src="a.js"></script><article><script>evil()</script><style>a{}</style>'
        "<b style=\"top: 0\">x</b><i style='color: &quot;x&quot;'>z</i>"
        '<b onclick="evil()">y</b></article></body></html>'
    )
    page = policy.with_policy(page)
    found = rules(page)
    script, style = found.pop("script-src"), found.pop("style-src")
    assert script == ["'self'", "file:", *policy.hashes(["theme()"])]
    assert style == ["'self'", "file:", "'unsafe-hashes'", *policy.hashes(["a{}", "top: 0", 'color: "x"'])]
    assert found["default-src"] == ["'none'"]
    assert "unsafe-inline" not in page and "unsafe-eval" not in page


def test_the_policy_comes_before_what_is_loaded():
    page = '<html><head>\n<meta charset="utf-8"/><link href="a.css" rel="stylesheet"/></head></html>'
    found = policy.with_policy(page)
    assert found.index("charset") < found.index("Content-Security-Policy") < found.index("a.css")


@pytest.fixture(scope="module")
def site(built) -> Path:
    project = built(
        {
            "conf.py": f"{CONF}\nextensions += ['_ext.messages', '_ext.scripts']\n"
            f"html_static_path = [{str(ROOT / 'docs' / '_static')!r}]\n",
            "docs/index.rst": "Home\n====\n\n.. toctree::\n\n   lessons/index\n   tables\n   table\n",
            "docs/table.rst": TABLE,
            "examples/01_first.py": lesson("First", body=HTML),
        }
    )
    return project.folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize(("way", "scheme"), some(product(("served", "disk"), ("light", "dark")), every=3))
def test_pages_work_without_a_violation(browser, site, way, scheme):
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert len(pages) > 5
    with served(site) as address, opened(browser, color_scheme=scheme) as context:
        address = address if way == "served" else f"{site.as_uri()}/"
        tab = context.new_page()
        broken = violations(tab)
        for name in pages:
            tab.goto(address + name)
            assert tab.evaluate("document.body.dataset.theme") == "auto", name  # its script ran
        assert broken == []  # now: a page without its styles may not let itself be clicked
        tab.locator(".theme-toggle").locator("visible=true").first.click()
        assert tab.evaluate("document.body.dataset.theme") in ("light", "dark")
        tab.goto(f"{address}lessons/01_first.html")
        fold = tab.locator("details.solution").first
        fold.locator("summary").click()
        assert fold.locator("pre").is_visible()
        assert tab.locator("b.x").evaluate("one => getComputedStyle(one).color") == "rgb(255, 0, 0)"
        tab.locator("input[name=q]").first.fill("first")
        tab.locator("input[name=q]").first.press("Enter")
        tab.locator("#search-results li").first.wait_for()
        tab.wait_for_load_state("networkidle")
        assert broken == []


PUT_IN = {
    "a script": "<script>document.title = 'run'</script>",
    "a script in the content": "<article><script>document.title = 'run'</script></article>",
    "a handler": "<img src='x:' onerror=\"document.title = 'run'\">",
    "another server's script": "<script src='https://example.org/x.js'></script>",
    "another server's picture": "<img src='https://example.org/x.png'>",
    "a frame": "<iframe src='https://example.org/'></iframe>",
    "a base": "<base href='https://example.org/'>",
    "a style": "<b style='top: 77px'>x</b>",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["served", "disk"])
def test_what_is_put_into_a_page_does_not_run(browser, site, way, request):
    page = site / "put_in.html"
    request.addfinalizer(lambda: page.unlink(missing_ok=True))
    before = (site / "index.html").read_text(encoding="utf-8")
    with served(site) as address, opened(browser) as context:
        asked = []
        context.route("https://example.org/**", lambda route: (asked.append(1), route.abort()))
        tab = context.new_page()
        broken = violations(tab)
        for name, html in PUT_IN.items():
            page.write_text(before.replace("</body>", f"{html}</body>"), encoding="utf-8")
            tab.goto((address if way == "served" else f"{site.as_uri()}/") + page.name)
            tab.wait_for_load_state("networkidle")
            assert tab.title() != "run" and asked == [], name
            assert broken, f"{name}: no violation"
            broken.clear()
        # the same without the policy: the test sees what runs
        start = before.index('<meta http-equiv="Content-Security-Policy"')
        without = before[:start] + before[before.index(">", start) + 1 :]
        page.write_text(without.replace("</body>", f"{PUT_IN['a script']}</body>"), encoding="utf-8")
        tab.goto((address if way == "served" else f"{site.as_uri()}/") + page.name)
        assert tab.title() == "run" and broken == []
