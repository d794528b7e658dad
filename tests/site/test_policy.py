"""The Content-Security-Policy of the pages: nothing breaks it, and what is put in later does not run."""

from __future__ import annotations

import pytest
from _ext import policy
from browser import opened, violations
from bs4 import BeautifulSoup


def rules(page: str) -> dict[str, list[str]]:
    soup = BeautifulSoup(page, "html.parser")
    (found,) = soup.select("head > meta[http-equiv=Content-Security-Policy]")
    return {words[0]: words[1:] for words in map(str.split, found["content"].split(";"))}


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
def test_what_is_put_into_a_page_does_not_run(browser, site, address):
    before = (site.html / "licences.html").read_text("utf-8")
    with opened(browser) as context:
        asked: list[str] = []
        context.route("https://example.org/**", lambda route: (asked.append("request"), route.abort()))
        tab = context.new_page()
        broken = violations(tab)

        def show(page: str) -> None:
            broken.clear()
            tab.route("**/put_in.html", lambda route: route.fulfill(body=page, content_type="text/html"))
            tab.goto(f"{address}put_in.html")
            tab.wait_for_load_state("networkidle")
            tab.unroute("**/put_in.html")

        for name, html in PUT_IN.items():
            show(before.replace("</body>", f"{html}</body>"))
            assert tab.title() != "run" and asked == [], name
            assert broken, f"{name}: no violation"
        # the same without the policy: the test sees what runs
        start = before.index('<meta http-equiv="Content-Security-Policy"')
        without = before[:start] + before[before.index(">", start) + 1 :]
        show(without.replace("</body>", f"{PUT_IN['a script']}</body>"))
        assert tab.title() == "run" and broken == []
