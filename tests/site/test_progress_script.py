"""What the reader's browser remembers: lessons read, exercises passed, where the reader stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import check_accessible, opened
from pages import LESSONS
from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow

FIRST, SECOND, LAST = (f"lessons/{LESSONS[place].stem}.html" for place in (0, 1, -1))
SMALL = {"width": 500, "height": 400}
TICK = "I have passed this exercise"
FULL = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
FORBIDDEN = """
Object.defineProperty(window, "localStorage", {get() { throw new DOMException("no", "SecurityError"); }})
"""


@pytest.fixture(params=["http", pytest.param("file", marks=pytest.mark.thorough)])
def context(site, browser, address, request) -> Iterator[BrowserContext]:
    """A new browser without any progress."""
    base = address if request.param == "http" else f"{site.html.as_uri()}/"
    with opened(browser, base_url=base, viewport=SMALL, bypass_csp=True, reduced_motion="reduce") as context:
        yield context


@pytest.fixture
def tab(context) -> Page:
    return context.new_page()


def go_on(tab: Page, page: str = "index.html") -> str | None:
    """Where the link to continue leads, if there is one."""
    tab.goto(page)
    links = tab.locator(".progress a").all()
    return links[0].evaluate("link => link.href").rpartition("/lessons/")[2] if links else None


def marked(tab: Page, mark: str) -> list[str]:
    """The lessons that are marked on the page of all lessons."""
    tab.goto("lessons/index.html")
    links = tab.locator(f".sphx-glr-thumbcontainer a.{mark}").all()
    return [f"lessons/{link.get_attribute('href').partition('#')[0]}" for link in links]


def read_to_the_end(tab: Page, page: str) -> None:
    tab.goto(page)
    tab.locator(".keypoints").scroll_into_view_if_needed()
    tab.locator(".sidebar-tree .current > a.read").wait_for(state="attached")


def test_a_lesson_is_read_at_its_end_and_the_next_one_follows(tab):
    assert go_on(tab) is None and marked(tab, "read") == []
    tab.goto(FIRST)
    assert go_on(tab).startswith(LESSONS[0].stem)
    assert marked(tab, "read") == []  # opened is not read
    read_to_the_end(tab, FIRST)
    assert marked(tab, "read") == [FIRST]
    assert go_on(tab) == go_on(tab, "lessons/index.html") == f"{LESSONS[1].stem}.html"
    assert tab.locator(".progress a").inner_text().startswith("Continue with lesson 2 ·")
    read_to_the_end(tab, LAST)
    assert go_on(tab) is None
    assert marked(tab, "read") == [FIRST, LAST]


def test_the_link_leads_to_the_section_where_the_reader_stopped(tab):
    tab.goto(SECOND)
    place = tab.evaluate("""() => {
      const part = document.querySelectorAll("article section section")[3];
      part.scrollIntoView();
      return part.id;
    }""")
    assert go_on(tab) == f"{LESSONS[1].stem}.html#{place}"
    tab.locator(".progress a").click()
    tab.wait_for_url(f"**/{SECOND}#{place}")


def test_a_passed_exercise_stays_ticked_until_all_is_forgotten(tab):
    tab.goto(FIRST)
    tick = tab.get_by_label(TICK)
    assert not tick.is_checked()
    tick.check()
    tab.reload()
    assert tick.is_checked()
    assert marked(tab, "passed") == [FIRST]
    tab.get_by_role("button", name="Forget my progress").click()
    assert tab.locator("a.passed, a.read, .progress").count() == 0
    assert tab.evaluate("localStorage.getItem('gpulesson')") is None
    tab.goto(FIRST)
    assert not tick.is_checked()


@pytest.mark.parametrize("stored", ["{", "null", '{"read": 7, "last": null}', '{"passed": 7, "last": 5}'])
def test_what_is_stored_may_be_anything(tab, stored):
    problems: list[Exception] = []
    tab.on("pageerror", lambda problem: problems.append(problem))
    tab.goto("index.html")
    tab.evaluate("text => localStorage.setItem('gpulesson', text)", stored)
    assert go_on(tab) is None
    tab.goto(FIRST)
    tab.get_by_label(TICK).check()
    assert marked(tab, "passed") == [FIRST] and not problems


@pytest.mark.parametrize("trouble", [FULL, FORBIDDEN])
def test_without_storage_nothing_is_shown_and_nothing_breaks(context, trouble):
    context.add_init_script(trouble)
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda problem: problems.append(str(problem.stack)))
    for page in ("index.html", FIRST):
        tab.goto(page)
        tab.evaluate("dispatchEvent(new Event('pagehide'))")
        assert tab.locator(".progress, .box.exercise input, a.read").count() == 0
    assert not [problem for problem in problems if "progress.js" in problem or "continue.js" in problem]


def test_what_is_shown_is_accessible(tab):
    tab.goto(FIRST)
    tab.goto("index.html")
    assert tab.locator(".progress").is_visible()
    for scheme in ("light", "dark"):
        check_accessible(tab, 375, scheme)
