"""The site in a real browser: for everybody, on a telephone, in the dark, without JavaScript and on paper."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import GUIDES, LESSONS, SITE, page_name

pytestmark = pytest.mark.slow

PAGES = [
    "index",
    *map(page_name, LESSONS + GUIDES),
    "lessons/index",
    "reference",
    "coverage",
    "measured",
    "setup",
    "search",
]


# what of the page reaches beyond the window, unless it lies in an area that scrolls by itself
SPILLED = """
[...document.querySelectorAll("article *")].filter((element) => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let area = element; area.tagName !== "ARTICLE"; area = area.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(area).overflowX)) return false;
  return true;
}).map((element) => element.outerHTML.slice(0, 100))
"""


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture(scope="module", params=[1280, 375])
def view(request, scheme, browser):
    context = browser.new_context(color_scheme=scheme, viewport={"width": request.param, "height": 800})
    yield context
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_breaks_no_rule_of_accessibility(view, address, name):
    tab = view.new_page()
    tab.goto(f"{address}{name}.html")
    tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    tab.wait_for_timeout(100)  # until what scrolls has become focusable
    result = Axe().run(tab)
    assert result.violations_count == 0, result.generate_report()
    assert tab.evaluate(SPILLED) == [], "wider than the window, and nothing to scroll it with"
    page = tab.locator(".content")  # the theme lets it scroll sideways, where it is wider than the window
    assert page.evaluate("page => page.scrollWidth <= page.clientWidth")
    tab.close()


def test_no_page_asks_another_server(browser, address):
    """Every page is opened; a request that leaves this machine is recorded and refused."""
    elsewhere = []
    context = browser.new_context()
    context.route(
        lambda url: not url.startswith(address),
        lambda route: (elsewhere.append(route.request.url), route.abort()),
    )
    tab = context.new_page()
    pages = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]
    for name in [*pages, "search.html?q=device"]:
        tab.goto(address + name)
        tab.wait_for_load_state("networkidle")
    context.close()
    assert pages and not elsewhere


def test_the_watch_for_other_servers_sees_one(browser, address):
    elsewhere = []
    context = browser.new_context()
    context.route(lambda url: not url.startswith(address), lambda route: (elsewhere.append(1), route.abort()))
    tab = context.new_page()
    tab.goto(f"{address}index.html")
    tab.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'}))")
    tab.wait_for_load_state("networkidle")
    context.close()
    assert elsewhere


def test_a_solution_unfolds_without_javascript(browser, address):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
    solution = tab.locator("details.solution").first
    assert not solution.locator("pre").is_visible()
    solution.locator("summary").click()
    assert solution.locator("pre").is_visible()
    context.close()


def test_a_solution_is_printed_unfolded(browser, address):
    tab = browser.new_page()
    tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
    code = tab.locator("details.solution pre").first
    assert not code.evaluate("code => code.checkVisibility()")
    tab.emulate_media(media="print")
    assert code.evaluate("code => code.checkVisibility()")
    tab.close()


def test_wide_output_is_reached_with_the_keyboard(browser, address):
    tab = browser.new_page(viewport={"width": 375, "height": 800})
    tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
    tab.wait_for_timeout(100)
    scrolling = (
        "[...document.querySelectorAll('article pre')].filter(area => area.scrollWidth > area.clientWidth)"
    )
    assert tab.evaluate(f"{scrolling}.length") > 0
    assert tab.evaluate(f"{scrolling}.every(area => area.tabIndex === 0)")
    assert tab.evaluate("[...document.querySelectorAll('article pre')].some(area => area.tabIndex === -1)")
    tab.close()


def test_search_finds_a_lesson(browser, address):
    tab = browser.new_page()
    tab.goto(f"{address}search.html?q=accelerator")
    tab.wait_for_selector("#search-results li a")
    assert any("lessons/" in link.get_attribute("href") for link in tab.locator("#search-results li a").all())
    assert tab.locator("h1").count() == 1
    tab.close()
