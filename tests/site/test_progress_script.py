"""What the reader's browser remembers: lessons read, exercises passed, where the reader stopped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from browser import check_accessible, opened, served
from pages import ROOT
from playwright.sync_api import BrowserContext, Page
from projects import CONF, Project, lesson

STATIC = ROOT / "docs" / "_static"
FIRST, SECOND = "lessons/01_first.html", "lessons/02_second.html"
LONG = "# Words.\n#\n" * 40
SECTIONS = "".join(f"\n# %%\n# {name}\n# {'-' * 9}\n#\n{LONG}" for name in ("One", "Two"))
HOME = """
Home
====

.. container:: start

   Start

.. toctree::

   lessons/index
   tables
"""
FULL = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
FORBIDDEN = """
Object.defineProperty(window, "localStorage", {get() { throw new DOMException("no", "SecurityError"); }})
"""


@pytest.fixture(scope="module")
def site(built) -> Project:
    conf = (
        f"{CONF}\nextensions.append('_ext.scripts')\nhtml_static_path = [{str(STATIC)!r}]\n"
        "html_css_files = ['gpulesson.css']\nhtml_theme_options = {'top_of_page_buttons': []}\n"
        "sphinx_gallery_conf['css'] = ()\n"
    )

    def long(title: str) -> str:
        start, exercise = lesson(title).split("# %%\n# .. exercise", 1)
        return f"{start}{SECTIONS}\n# %%\n# .. exercise{exercise}"

    examples = {"examples/01_first.py": long("The first"), "examples/02_second.py": long("The second")}
    return built({"conf.py": conf, "docs/index.rst": HOME, **examples})


@pytest.fixture(params=["http", pytest.param("file", marks=pytest.mark.thorough)])
def context(site, browser, request) -> Iterator[BrowserContext]:
    """A new browser without any progress, small enough that a lesson is longer than its window."""
    folder = site.folder / "out"
    small = {"width": 500, "height": 400}
    with served(folder) as address:
        base = address if request.param == "http" else f"{folder.as_uri()}/"
        with opened(
            browser, base_url=base, viewport=small, bypass_csp=True, reduced_motion="reduce"
        ) as context:
            yield context


@pytest.fixture
def tab(context) -> Page:
    return context.new_page()


def go_on(tab: Page, page: str = "index.html") -> str | None:
    """Where the link to continue leads, if there is one."""
    tab.goto(page)
    links = tab.locator(".progress a").all()
    return links[0].get_attribute("href").rpartition("/lessons/")[2] if links else None


def marked(tab: Page, mark: str) -> list[str]:
    """The lessons that are marked on the page of all lessons."""
    tab.goto("lessons/index.html")
    return tab.locator(f".sphx-glr-thumbcontainer a.{mark}").all_text_contents()


@pytest.mark.slow
def test_a_lesson_is_read_at_its_end_and_the_next_one_follows(tab):
    assert go_on(tab) is None and marked(tab, "read") == []
    tab.goto(FIRST)
    assert go_on(tab) == "01_first.html" or go_on(tab).startswith("01_first.html#")
    assert marked(tab, "read") == []  # opened is not read
    tab.goto(FIRST)
    tab.locator(".keypoints").scroll_into_view_if_needed()
    tab.locator(".sidebar-tree a.read").wait_for(state="attached")
    assert marked(tab, "read") == ["The first"]
    assert go_on(tab) == "02_second.html"
    assert go_on(tab, "lessons/index.html") == "02_second.html"
    assert "The second" in tab.locator(".progress").inner_text()
    tab.goto(SECOND)
    tab.locator(".keypoints").scroll_into_view_if_needed()
    tab.locator(".sidebar-tree a.read >> nth=1").wait_for(state="attached")
    assert go_on(tab) is None  # that was the last one
    assert marked(tab, "read") == ["The first", "The second"]


@pytest.mark.slow
def test_the_link_leads_to_the_section_where_the_reader_stopped(tab):
    tab.goto(SECOND)
    tab.locator("#two").scroll_into_view_if_needed()
    tab.evaluate("document.querySelector('#two').scrollIntoView()")
    assert go_on(tab) == "02_second.html#two"
    tab.locator(".progress a").click()
    tab.wait_for_url("**/02_second.html#two")


@pytest.mark.slow
def test_a_passed_exercise_stays_ticked_until_all_is_forgotten(tab):
    tab.goto(FIRST)
    tick = tab.get_by_label("I have passed this exercise")
    assert not tick.is_checked()
    tick.check()
    tab.reload()
    assert tick.is_checked()
    assert marked(tab, "passed") == ["The first"]
    tab.get_by_role("button", name="Forget my progress").click()
    assert tab.locator("a.passed, a.read, .progress").count() == 0
    assert tab.evaluate("localStorage.getItem('gpulesson')") is None
    tab.goto(FIRST)
    assert not tick.is_checked()


@pytest.mark.slow
@pytest.mark.parametrize(
    "stored", ["{", "5", "null", '{"read": 7, "last": null}', '{"passed": 7, "last": 5}']
)
def test_what_is_stored_may_be_anything(tab, stored):
    problems: list[Exception] = []
    tab.on("pageerror", lambda problem: problems.append(problem))
    tab.goto("index.html")
    tab.evaluate("text => localStorage.setItem('gpulesson', text)", stored)
    assert go_on(tab) is None
    tab.goto(FIRST)
    tab.get_by_label("I have passed this exercise").check()
    tab.locator(".keypoints").scroll_into_view_if_needed()
    tab.locator(".sidebar-tree a.read").wait_for(state="attached")
    assert marked(tab, "passed") == marked(tab, "read") == ["The first"] and not problems


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [FULL, FORBIDDEN])
def test_without_storage_nothing_is_shown_and_nothing_breaks(context, trouble):
    context.add_init_script(trouble)
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda problem: problems.append(str(problem.stack)))
    for page in ("index.html", "lessons/index.html", FIRST):
        tab.goto(page)
        tab.evaluate("dispatchEvent(new Event('pagehide'))")
        assert tab.locator(".progress, .box.exercise input, a.read").count() == 0
    assert not [problem for problem in problems if "progress.js" in problem or "continue.js" in problem]


@pytest.mark.slow
def test_without_javascript_nothing_is_shown(site, browser):
    with opened(browser, java_script_enabled=False) as context:
        tab = context.new_page()
        for page in ("index.html", FIRST):
            tab.goto(f"{(site.folder / 'out').as_uri()}/{page}")
            assert tab.locator(".progress, .box.exercise input").count() == 0


@pytest.mark.slow
def test_what_is_shown_is_accessible(tab):
    tab.goto(FIRST)
    tab.get_by_label("I have passed this exercise").check()
    tab.locator(".keypoints").scroll_into_view_if_needed()
    tab.locator(".sidebar-tree a.read").wait_for(state="attached")
    for page in (FIRST, "index.html", "lessons/index.html"):
        tab.goto(page)
        for width, scheme in product((1280, 375), ("light", "dark")):
            check_accessible(tab, width, scheme)
