"""A lesson used with the keyboard, on a telephone and on a desk: the focus is always visible."""

from __future__ import annotations

import re

import pytest
from browser import SETTLE, UNFOLD, opened, violations
from pages import LESSONS
from sphinx_gallery.py_source_parser import remove_config_comments, split_code_and_text_blocks

pytestmark = pytest.mark.slow

PAGE = f"lessons/{LESSONS[2].stem}.html"
PHONE, DESK = {"width": 375, "height": 800}, {"width": 1280, "height": 800}
# the element in focus: its place in the page, whether it is seen, and differs from how it is without focus
FOCUSED = """
() => {
  const element = document.activeElement;
  if (element === document.body) return null;
  const look = () => {
    const {outlineStyle, outlineWidth, outlineColor, boxShadow} = getComputedStyle(element);
    return [outlineStyle === "none" ? "" : outlineWidth + outlineColor, boxShadow].join();
  };
  const {left, top, right, bottom} = element.getBoundingClientRect();
  const width = Math.min(right, innerWidth) - Math.max(left, 0);
  const height = Math.min(bottom, innerHeight) - Math.max(top, 0);
  const seen = width > 1 && height > 1;
  const focused = look();
  element.blur();
  const plain = look();
  element.focus({preventScroll: true});
  const place = [...document.querySelectorAll("*")].indexOf(element);
  const drawer = element.closest("aside")?.ariaLabel;
  return {place, html: element.outerHTML.slice(0, 120), seen, ringed: focused !== plain, drawer};
}
"""
# a recorded picture that comes while one presses Tab moves what stands below it
PICTURES = """
() => Promise.all([...document.images].map((image) => {
  image.loading = "eager";
  return image.decode().catch(() => {});
}))
"""
DRAWERS = {"Site menu": ".sidebar-drawer", "On this page": ".toc-drawer"}


def walk(tab) -> list[dict]:
    """Press Tab until the focus leaves the page; return what it was on."""
    stops = []
    while len(stops) < 1000:
        tab.keyboard.press("Tab")
        stop = tab.evaluate(FOCUSED)
        if stop is None or (stops and stop["place"] == stops[0]["place"]):
            return stops
        stops.append(stop)
    raise AssertionError("the focus is caught")


@pytest.mark.parametrize("window", [PHONE, DESK], ids=["375", "1280"])
def test_each_stop_of_the_focus_is_in_the_window_and_has_a_ring(browser, address, window):
    with opened(browser, viewport=window, reduced_motion="reduce") as context:
        tab = context.new_page()
        tab.goto(address + PAGE)
        tab.evaluate(UNFOLD)
        tab.evaluate(PICTURES)
        tab.evaluate(SETTLE)
        stops = walk(tab)
    assert len(stops) > 40
    places = [stop["place"] for stop in stops]
    assert places == sorted(places), "in another order than the page's"
    assert not [stop["html"] for stop in stops if not stop["seen"]]
    assert not [stop["html"] for stop in stops if not stop["ringed"]]


@pytest.mark.parametrize("name", DRAWERS)
def test_a_drawer_is_opened_and_closed_with_the_keyboard(browser, address, name):
    with opened(browser, viewport=PHONE, reduced_motion="reduce") as context:
        tab = context.new_page()
        tab.goto(address + PAGE)
        opener = tab.get_by_role("button", name=name, exact=True)
        drawer = tab.locator(DRAWERS[name])
        opener.focus()
        for key in ("Enter", "Space"):
            assert opener.get_attribute("aria-expanded") == "false"
            assert drawer.get_attribute("id") == opener.get_attribute("aria-controls")
            tab.keyboard.press(key)
            assert drawer.locator(".close").evaluate("button => button.matches(':focus-visible')")
            assert tab.locator(f"[aria-controls={drawer.get_attribute('id')}][aria-expanded=true]").count()
            stops = walk(tab)
            assert len(stops) > 3
            for stop in stops:
                assert stop["seen"] and stop["ringed"], stop["html"]
                assert stop["drawer"] == name, stop["html"]
            tab.keyboard.press("Escape")
            assert opener.evaluate("button => button === document.activeElement")
        tab.keyboard.press("Enter")
        tab.keyboard.press("Enter")  # on "Close"
        assert opener.evaluate("button => button === document.activeElement")
        assert opener.get_attribute("aria-expanded") == "false"


def test_a_link_in_the_contents_closes_them_and_leads_there(browser, address):
    with opened(browser, viewport=PHONE, reduced_motion="reduce") as context:
        tab = context.new_page()
        tab.goto(address + PAGE)
        tab.get_by_role("button", name="On this page").click()
        tab.locator(".toc-drawer a").locator("visible=true").last.click()
        assert not tab.locator("#__toc").is_checked()
        assert "#" in tab.url and tab.locator(":target").is_visible()
        tab.keyboard.press("Tab")
        assert tab.evaluate(
            "document.querySelector(':target').compareDocumentPosition(document.activeElement) & 4"
        )


def test_a_drawer_that_is_open_when_the_window_grows_hides_nothing(browser, address):
    with opened(browser, viewport=PHONE) as context:
        tab = context.new_page()
        tab.goto(address + PAGE)
        tab.get_by_role("button", name="Site menu").click()
        tab.set_viewport_size(DESK)
        tab.evaluate(SETTLE)
        assert tab.locator("[inert]").count() == 0


@pytest.mark.parametrize(("box", "drawer"), [("__navigation", ".sidebar-drawer"), ("__toc", ".toc-drawer")])
def test_without_javascript_a_drawer_opens_by_its_check_box(browser, address, box, drawer):
    with opened(browser, viewport=PHONE, java_script_enabled=False) as context:
        tab = context.new_page()
        tab.goto(address + PAGE)
        link = tab.locator(f"{drawer} a:not(.sidebar-tree ul ul a)").last  # in no closed part of the menu
        assert not link.is_visible()
        tab.locator(f"label[for={box}]:not(.overlay)").locator("visible=true").click()
        assert link.is_visible()
        tab.goto(address + PAGE)
        tab.locator(f"#{box}").press("Space")
        assert link.is_visible()


def test_nothing_moves_for_who_wants_no_motion(browser, address):
    moving = """[...document.querySelectorAll("*")].filter((element) => {
      const {scrollBehavior, transitionDuration} = getComputedStyle(element);
      return scrollBehavior === "smooth" || transitionDuration.split(", ").some((time) => time !== "0s");
    }).length"""
    for motion, some in (("no-preference", True), ("reduce", False)):
        with opened(browser, reduced_motion=motion) as context:
            tab = context.new_page()
            tab.goto(address + PAGE)
            assert bool(tab.evaluate(moving)) == some


@pytest.mark.parametrize("start", ["http", pytest.param("file", marks=pytest.mark.thorough)])
def test_code_is_copied_as_it_stands_in_the_script(browser, site, address, start):
    blocks = split_code_and_text_blocks(str(LESSONS[2]))[1]
    codes = [remove_config_comments(text).strip() for kind, text, _ in blocks if kind == "code"]
    script = [re.sub(r"\A# fold: .*\n+", "", code) for code in codes]
    at = address if start == "http" else f"{site.html.as_uri()}/"
    with opened(browser, permissions=["clipboard-read", "clipboard-write"]) as context:
        tab = context.new_page()
        broken = violations(tab)
        tab.clock.install()
        tab.goto(at + PAGE)
        tab.evaluate(UNFOLD)
        cells = tab.locator(".highlight-Python")
        assert len(script) > 5
        for cell in cells.all():
            cell.scroll_into_view_if_needed()  # a button is made when its code comes near
            copy = cell.get_by_role("button", name="Copy this code")
            copy.focus()
            assert copy.evaluate("button => getComputedStyle(button).opacity") == "1"
            tab.keyboard.press("Enter")
            tab.get_by_role("status").filter(has_text=re.compile("^Copied$")).wait_for()
            copied = tab.evaluate("navigator.clipboard.readText()")
            assert copied == script.pop(0)
            assert copy.text_content() == "Copied"
            tab.clock.run_for(2000)
            assert copy.text_content() == "Copy"
        assert not script
        assert tab.locator(".sphx-glr-script-out .copy").count() == 0
        assert not broken


def test_copy_buttons_on_a_telephone_hide_no_code(browser, address):
    with opened(browser, viewport=PHONE, has_touch=True, is_mobile=True) as context:
        tab = context.new_page()
        tab.goto(address + PAGE)
        tab.locator(".highlight-Python:visible").first.scroll_into_view_if_needed()  # it gets a button then
        copy = tab.locator(".copy").locator("visible=true").first
        box = copy.bounding_box()
        assert copy.evaluate("button => getComputedStyle(button).opacity") == "1" and box["height"] >= 24
        line = copy.evaluate("""button => {
          const code = document.createRange();
          code.selectNodeContents(button.parentElement.querySelector("pre"));
          return [...code.getClientRects()].findLast(({width}) => width > 0).bottom;
        }""")
        assert line <= box["y"]


def test_without_a_clipboard_there_is_no_button(browser, address):
    with opened(browser) as context:
        tab = context.new_page()
        tab.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        tab.goto(address + PAGE)
        assert tab.locator(".highlight-Python").count() and tab.locator(".copy").count() == 0
