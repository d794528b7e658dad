"""The site in a real browser: for everybody, on a telephone, in the dark, without JavaScript and on paper."""

from __future__ import annotations

from itertools import islice

import pytest
from _ext.figures import STYLE
from browser import SETTLE, UNFOLD, check_accessible, check_width, opened, violations
from pages import GUIDES, LESSONS, page_name

pytestmark = pytest.mark.slow

PAGES = [
    "index",
    *map(page_name, LESSONS + GUIDES),
    "lessons/index",
    "lessons/guides/index",
    "glossary",
    "about",
    "errors",
    "errors_rare",
    "instructors",
    "reference",
    "results",
    "coverage",
    "handbook",
    "licences",
    "measured",
    "film",
    "plan",
    "port",
    "review",
    "tried",
    "cluster",
    "promises",
    "scaling",
    "setup",
    "testing",
    "search",
    "genindex",
    "py-modindex",
    "404",
    "_modules/index",
    "_modules/gpulesson/training",  # as all pages of source
]
# with what others have, too: boxes, drawings, quick questions, figures, tables, charts, search
LOOKED = "index", "lessons/09_feeding_the_gpu", "results", "search"
VIEWS = (1280, "light"), (1280, "dark"), (375, "light")
# of these pages, in each run
FEW = {"lessons/09_feeding_the_gpu": VIEWS[1:2], "results": VIEWS[2:], "search": VIEWS[1:]}
# words that go on in the next line, in what a selector finds
CUT_WORDS = """
(selector) => [...document.querySelectorAll(selector)].flatMap((element) => {
  const part = document.createRange(), cut = [];
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let text; text = texts.nextNode();) for (const word of text.data.matchAll(/[^\\s-]+/g)) {
    part.setStart(text, word.index);
    part.setEnd(text, word.index + word[0].length);
    if (new Set([...part.getClientRects()].map((box) => box.top)).size > 1) cut.push(word[0]);
  }
  return cut;
})
"""


def test_all_pages_are_looked_at(site):
    found = {path.relative_to(site.html).with_suffix("").as_posix() for path in site.pages()}
    sources = {name for name in found if name.startswith("_modules/gpulesson")}
    assert len(PAGES) > 25 and found - sources == set(PAGES) - sources


@pytest.mark.parametrize(
    ("name", "views"),
    [(name, FEW.get(name, VIEWS)) for name in LOOKED]
    + [
        pytest.param(name, VIEWS, marks=pytest.mark.thorough)
        for name in PAGES
        if name not in {*LOOKED} - {*FEW}
    ],
)
def test_a_page_breaks_no_rule_of_accessibility(browser, address, name, views):
    with opened(browser) as context:
        tab = context.new_page()
        tab.goto(f"{address}{name}.html")
        for width, scheme in views:
            check_accessible(tab, width, scheme)
        for width in (1440, 768):
            check_width(tab, width)


@pytest.mark.thorough
def test_the_check_sees_colours_and_widths(browser, address):
    """Planted in one view each, so that the check of another view cannot have seen it."""
    with opened(browser, bypass_csp=True) as context:  # the page's own policy would refuse the style
        tab = context.new_page()
        tab.goto(f"{address}index.html")
        check_accessible(tab, 1280, "dark")
        style = "@media (prefers-color-scheme: dark) { article p { color: #222 !important } }"
        tab.add_style_tag(content=style)
        check_accessible(tab, 1280, "light")
        with pytest.raises(AssertionError, match="color-contrast"):
            check_accessible(tab, 1280, "dark")
        tab.evaluate("document.querySelector('article p').style.width = '1000px'")
        with pytest.raises(AssertionError, match="wider than 375"):
            check_accessible(tab, 375, "light")


@pytest.mark.parametrize("name", ["errors", "errors_rare"])
def test_headings_break_between_words_on_a_telephone(browser, address, name):
    with opened(browser, viewport={"width": 375, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(f"{address}{name}.html")
        assert tab.locator("article :is(h2, h3) code").count() > 5
        assert tab.evaluate(CUT_WORDS, "article :is(h1, h2, h3)") == []


def test_names_break_between_words_on_a_telephone(browser, address):
    with opened(browser, viewport={"width": 375, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(f"{address}reference.html")
        assert tab.locator("article dt.sig").count() > 50
        assert tab.evaluate(CUT_WORDS, "article :is(h1, h2, h3, dt, p)") == []


def requests_elsewhere(context, address) -> list[str]:
    """Return a list that grows by each request that leaves this machine, which is refused."""
    elsewhere = []
    context.route(
        lambda url: not url.startswith((address, "file:", "data:")),
        lambda route: (elsewhere.append(route.request.url), route.abort()),
    )
    return elsewhere


def test_the_watch_for_other_servers_sees_one(browser, address):
    with opened(browser, bypass_csp=True) as context:  # the page's own policy would refuse the picture
        elsewhere = requests_elsewhere(context, address)
        tab = context.new_page()
        tab.goto(f"{address}index.html")
        tab.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://example.org/x.png'}))")
        tab.wait_for_load_state("networkidle")
    assert elsewhere


@pytest.mark.parametrize("names", [LOOKED, pytest.param(PAGES, marks=pytest.mark.thorough)], ids=len)
def test_no_page_asks_another_server_or_breaks_its_policy(browser, site, address, names):
    """Pages are opened over http and from the disk, and the search is used."""
    with opened(browser) as context:
        elsewhere = requests_elsewhere(context, address)
        tab = context.new_page()
        broken = violations(tab)
        for start in (address, f"{site.html.as_uri()}/"):
            for name in [*(f"{page}.html" for page in names), "search.html?q=device"]:
                tab.goto(start + name)
                tab.evaluate(SETTLE)
                assert tab.locator("meta[http-equiv=Content-Security-Policy]").count() == 1, (
                    f"{name}: no policy"
                )
            tab.locator("#search-results li").first.wait_for()
            tab.wait_for_load_state("networkidle")
            assert not broken
            tab.goto(f"{start}index.html")
            tab.locator(".theme-toggle").locator("visible=true").first.click()
            assert tab.evaluate("document.body.dataset.theme") in ("light", "dark")
    assert not broken and not elsewhere


def test_a_solution_unfolds_without_javascript(browser, address):
    with opened(browser, java_script_enabled=False) as context:
        tab = context.new_page()
        tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
        solution = tab.locator("details.solution").first
        assert not solution.locator("pre").is_visible()
        solution.locator("summary").click()
        assert solution.locator("pre").is_visible()


def test_a_solution_is_printed_unfolded(browser, address):
    with opened(browser) as context:
        tab = context.new_page()
        tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
        code = tab.locator("details.solution pre").first
        assert not code.evaluate("code => code.checkVisibility()")
        tab.emulate_media(media="print")
        assert code.evaluate("code => code.checkVisibility()")


def test_on_a_telephone_output_wraps_unless_it_is_a_table(browser, address):
    wide = """[...document.querySelectorAll(".sphx-glr-script-out pre")]
        .filter(area => area.scrollWidth > area.clientWidth).map(area => !!area.querySelector(".columns"))"""
    with opened(browser, viewport={"width": 375, "height": 800}) as context:
        tab = context.new_page()
        for name in ("07_common_mistakes", "08_was_it_faster"):  # long messages, wide tables
            tab.goto(f"{address}lessons/{name}.html")
            assert all(tab.evaluate(wide))
        assert tab.evaluate(f"{wide}.length") > 0


def test_88_columns_of_code_fit_beside_the_menu(browser, address):
    cut = """[...document.querySelectorAll("article pre")]
        .filter(area => area.scrollWidth > area.clientWidth + 1)"""
    with opened(browser, viewport={"width": 1280, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(f"{address}lessons/10_where_did_my_memory_go.html")
        tab.evaluate(UNFOLD)
        code = tab.locator(".exercise details pre").inner_text()
        assert max(map(len, code.splitlines())) == 88
        assert tab.evaluate(f"{cut}.map(area => area.textContent)") == []


def test_a_page_has_one_width_and_its_contents_beside_it(browser, address):
    widths = """[...document.querySelectorAll(
        "article section > :is(p:not(.downloads), .overview, .drawing, .highlight-Python)"
    )].map(part => Math.round(part.getBoundingClientRect().width))"""
    with opened(browser, viewport={"width": 1280, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
        assert len(set(tab.evaluate(widths))) == 1 < len(tab.evaluate(widths))
        link = tab.locator(".toc-tree a >> visible=true").first.bounding_box()
        assert link["x"] + link["width"] <= 1280
        assert not tab.locator(".toc-overlay-icon").locator("visible=true").count()


def test_the_letters_of_a_figure_are_large_enough_on_a_telephone(browser, address):
    scale = "figure => figure.getBoundingClientRect().width / figure.getAttribute('width')"
    with opened(browser, viewport={"width": 375, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(f"{address}lessons/{LESSONS[2].stem}.html")
        for figure in tab.locator("img.figure").locator("visible=true").all():
            assert STYLE["font.size"] * 4 / 3 * figure.evaluate(scale) >= 10


def test_wide_output_is_reached_with_the_keyboard(browser, address):
    scrolling = (
        "[...document.querySelectorAll('article pre')].filter(area => area.scrollWidth > area.clientWidth)"
    )
    with opened(browser, viewport={"width": 375, "height": 800}) as context:
        tab = context.new_page()
        tab.goto(f"{address}lessons/{LESSONS[0].stem}.html")
        tab.evaluate(UNFOLD)  # what is folded cannot be reached, and is measured when it opens
        tab.evaluate(SETTLE)
        assert tab.evaluate(f"{scrolling}.length") > 0
        assert tab.evaluate(f"{scrolling}.every(area => area.tabIndex === 0)")
        assert tab.evaluate(
            "[...document.querySelectorAll('article pre')].some(area => area.tabIndex === -1)"
        )


# what people ask or type, and the beginnings of the addresses that answer it
QUESTIONS = {
    "accelerator": "glossary.html#term-accelerator lessons/",
    "pin_memory": "lessons/09_feeding_the_gpu",
    "resume": "lessons/06_save_load_resume",
    "out of memory": "errors.html#error-out-of-memory",
    "how do I know my GPU is used": "lessons/01 lessons/08 lessons/11 errors.html#error-not-available",
    "why is my GPU slower than my CPU": "lessons/01 lessons/08 lessons/11",
    "how many workers should I use": "lessons/09_feeding_the_gpu",
    "gpu utilization is low": "lessons/08 lessons/09 lessons/11",
    "how to free gpu memory": "lessons/10 errors.html#error-out-of-memory",
    "what does pin_memory do": "lessons/09",
    "train on two gpus": "lessons/14 scaling cluster",
    "I have no GPU": "lessons/guides/learn_without_a_gpu lessons/01_is_there_a_gpu.html#no-gpu",
    "load a model on a computer without GPU": "lessons/06",
    "which batch size should I choose": "lessons/09 lessons/12 lessons/13 plan",
    "install pytorch with cuda on windows": "setup",
    "how to save a checkpoint": "lessons/06",
    "convert my script to gpu": "port index.html#your-own-script",
    "slurm job script": "cluster",
    "how do I time cuda code": "lessons/08",
    "save the model weights": "lessons/06",
}


@pytest.mark.parametrize("start", ["http", "file"])
def test_the_search_answers_questions(browser, site, address, start):
    """Nine of ten with the first section; also from a disk, where no page can be fetched."""
    wrong: dict[str, str] = {}
    problems: list[Exception] = []
    with opened(browser) as context:
        tab = context.new_page()
        tab.on("pageerror", lambda problem: problems.append(problem))
        asked = QUESTIONS if start == "http" else dict(islice(QUESTIONS.items(), 4))
        for question, places in asked.items():
            tab.goto(f"{address if start == 'http' else site.html.as_uri() + '/'}search.html?q={question}")
            first = tab.locator("#search-results ul.search > li > a").first.get_attribute("href")
            if not first.startswith(tuple(places.split())):
                wrong[question] = first
        assert tab.locator("h1").count() == 1
    assert not problems
    assert len(wrong) <= len(asked) / 10, wrong
