"""A real browser on a built site: Chromium, over http on this machine, and nothing beyond it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from course_pdf import CHROMIUM
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

QUIET = [  # no calls home: a test must see the requests of the page alone
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# axe's rules about what differs in dark: colours, and the pictures of plots
IN_DARK = ["color-contrast", "link-in-text-block", "image-alt", "role-img-alt", "svg-img-alt", "link-name"]
PATIENCE = 20 * 60 * 1000  # milliseconds, for a busy machine; Playwright's own 30 s are about the page

# the parts of a page that reach beyond the window, outside areas that scroll
SPILLED = """
[...document.querySelectorAll("article *")].filter((element) => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let area = element; area.tagName !== "ARTICLE"; area = area.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(area).overflowX)) return false;
  return true;
}).map((element) => element.outerHTML.slice(0, 100))
"""
# render what a browser leaves out until it comes into view, open every fold, wait until its page knows, and
# begin the parts to play with
UNFOLD = """
async () => {
  const messages = document.querySelectorAll(".message");
  for (const each of messages) each.style.contentVisibility = "visible";
  dispatchEvent(new Event("contentvisibilityautostatechange"));
  const folds = [...document.querySelectorAll("details:not([open])")];
  await Promise.all(folds.map((fold) => new Promise((done) => {
    fold.addEventListener("toggle", done, {once: true});
    fold.open = true;
  })));
  for (const part of document.querySelectorAll("[data-play]")) {
    part.scrollIntoView();
    while (!part.querySelector("button, input, select")) await new Promise(requestAnimationFrame);
  }
  scrollTo(0, 0);
}
"""
# two frames: the page is laid out, and what watches the sizes of its parts has seen them
SETTLE = """
() => new Promise((done, fail) => {
  requestAnimationFrame(() => requestAnimationFrame(done));
  setTimeout(fail, 300_000, "the browser has drawn nothing for five minutes");
})
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """Open a separate window, whose actions wait as long as it takes."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


def begun(tab: Page, name: str) -> Locator:
    """Scroll to a part to play with, which begins when it is near."""
    found = tab.locator(f"[data-play={name}]")
    found.scroll_into_view_if_needed()
    found.locator("button, input, select").first.wait_for(state="attached")
    return found


def check_accessible(tab: Page, width: int, scheme: Literal["light", "dark"]) -> None:
    """Check a page, all unfolded: the rules of accessibility, and that all of it can be reached.

    Dark colours move nothing: in dark only the rules about colours and pictures are asked again.
    """
    tab.emulate_media(color_scheme=scheme)
    check_width(tab, width)
    options: dict[str, Any] = {"resultTypes": ["violations"]}  # what passes is not described, only counted
    if scheme == "light":
        options["rules"] = {"target-size": {"enabled": True}}  # of WCAG 2.2: 24 pixels
    else:
        options["runOnly"] = {"type": "rule", "values": IN_DARK}
    result = Axe().run(tab, options=options)
    assert result.response["passes"], "no rule was applied"
    assert result.violations_count == 0, f"{width} {scheme}: {result.generate_report()}"


def check_width(tab: Page, width: int) -> None:
    """Check that a page, all unfolded, reaches beyond a window of this width only where it scrolls."""
    tab.set_viewport_size({"width": width, "height": 800})
    tab.evaluate(UNFOLD)
    tab.evaluate(SETTLE)
    assert tab.evaluate(SPILLED) == [], f"wider than {width} pixels, and nothing to scroll it with"
    content = tab.locator(".content")  # the theme lets it scroll sideways, where it is wider than the window
    assert content.evaluate("page => page.scrollWidth <= page.clientWidth")


def violations(tab: Page) -> list[str]:
    """Return a list that grows by what the browser says each time a page breaks its policy."""
    found: list[str] = []
    tab.on("console", lambda said: "Content Security Policy" in said.text and found.append(said.text))
    return found


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
