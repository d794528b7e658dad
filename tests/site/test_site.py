"""The site as it is built from these sources: what its pages say, load and link to."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import nbformat
import pytest
from errors_page import plain, sections
from pages import GUIDES, LESSONS, ROOT, Page, Site, css_addresses, loaded, page_name, section_after
from processes import run_script

from gpulesson.device import choose_device

pytestmark = pytest.mark.slow

RAW = [r"^\s*\.\. \w", r":\w+:`", r"``", r"`_\b", r"\w::\s*$", r"\|wheel\|"]  # what an unconverted page shows
EXECUTED = ".sphx-glr-script-out, .output_html, img.figure"
LIMIT = 60_000  # bytes of a page with its styles and scripts, compressed, without pictures


def by_stem(path: Path) -> str:
    return path.stem


@pytest.fixture(scope="module")
def pages(site: Site) -> dict[str, Page]:
    """All pages by their names; of the sources', two."""
    names = [path.relative_to(site.html).with_suffix("").as_posix() for path in site.pages()]
    sources = [name for name in names if name.startswith("_modules/")]
    assert {"_modules/index", "_modules/gpulesson/training"} < {*sources}
    names = [name for name in names if name not in sources] + [
        "_modules/index",
        "_modules/gpulesson/training",
    ]
    found = {f"{name}.html": site.page(name) for name in names}
    assert {"index.html", "search.html", *(f"lessons/{path.stem}.html" for path in LESSONS)} <= set(found)
    return found


@pytest.fixture(params=LESSONS, ids=by_stem)
def lesson(request) -> Path:
    return request.param


@pytest.fixture
def page(pages, lesson) -> Page:
    return pages[f"lessons/{lesson.stem}.html"]


def test_no_page_shows_raw_markup(pages):
    shown = {(name, raw) for name, page in pages.items() for raw in RAW if re.search(raw, page.text(), re.M)}
    assert not shown


@pytest.mark.parametrize("script", LESSONS + GUIDES, ids=by_stem)
def test_no_notebook_shows_raw_markup(script, site):
    notebook = nbformat.read(site.lessons.parent / f"{page_name(script)}.ipynb", as_version=4)
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.M | re.S)  # code blocks
    for raw in [*RAW, r"^[=~^-]{4,}$", r"<div class=\"admonition"]:
        assert not re.search(raw, text, re.M), raw
    if script in LESSONS:
        assert '<div class="alert alert-info">\n\n**Overview**' in text
        assert '<div class="alert alert-success">\n\n**Key points**' in text
        assert "<details>\n<summary>Solution</summary>" in text


def test_nothing_of_the_building_machine_is_on_the_site(site):
    for path in site.pages() + sorted(site.lessons.rglob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        for trace in (str(ROOT), str(Path.home()) + "/", sys.prefix):
            assert trace not in text, f"{trace} in {path}"


def test_no_page_loads_anything_from_elsewhere(pages, site):
    elsewhere = {(name, url) for name, page in pages.items() for url in loaded(page.soup) if "//" in url}
    elsewhere |= {
        (style.name, url)
        for style in site.html.rglob("*.css")
        for url in css_addresses(style.read_text(encoding="utf-8"))
        if "//" in url
    }
    assert not elsewhere


def test_everything_that_a_page_loads_is_there(pages):
    missing = {
        (name, url)
        for name, page in pages.items()
        for url in loaded(page.soup)
        if not url.startswith("data:") and not page.file(url).is_file()
    }
    assert not missing


def test_the_character_set_comes_early(pages):
    """A browser looks for it in the first 1024 bytes; a page's policy may be longer."""
    late = {
        name for name, page in pages.items() if b'<meta charset="utf-8"' not in page.path.read_bytes()[:1024]
    }
    assert not late


def test_no_name_is_given_twice_on_a_page(pages):
    for name, page in pages.items():
        names = [tag["id"] for tag in page.soup.find_all(id=True)]
        assert len({*names}) == len(names), (
            f"{name}: {sorted({one for one in names if names.count(one) > 1})}"
        )


def test_no_paragraph_holds_a_list(pages):
    assert not [name for name, page in pages.items() if page.soup.select("p :is(ul, ol, dl, div)")]


def test_no_code_holds_a_block(pages):
    """HTML has no ``div`` within ``pre``; Sphinx puts some there, into the pages of the package's source."""
    sources = [page for page in pages.values() if page.soup.select("pre .viewcode-block")]
    assert sources and not [page.name for page in pages.values() if page.soup.select("pre div")]


def test_no_link_is_broken(pages, site):
    broken = set()
    for name, page in pages.items():
        for link in (tag["href"] for tag in page.soup.find_all("a", href=True)):
            if re.match(r"\w+:", link):
                continue  # leads out of the site
            target, anchor = page.file(link), link.partition("#")[2]
            inside = target.is_relative_to(site.html)
            known = pages.get(target.relative_to(site.html).as_posix()) if inside else None
            if not target.is_file() or (anchor and known and anchor not in known.anchors):
                broken.add((name, link))
    assert not broken


def test_a_lesson_has_its_parts(page):
    titles = [title.get_text() for title in page.soup.select(".box > .admonition-title")]
    assert titles[0] == "Overview" and titles.count("Overview") == titles.count("Key points") == 1
    for part in (
        ".box.overview .box.objectives li",
        ".box.overview .box.prereq li",
        ".box.exercise li",
        ".box.keypoints li",
        "details.solution",
    ):
        assert page.soup.select(part), f"no {part}"
    assert page.soup.select(EXECUTED), "no output"
    downloads = [page.file(link["href"]).name for link in page.soup.select("p.downloads a")]
    assert downloads == [f"{page.path.stem}.ipynb", f"{page.path.stem}.py"]


def claimed(lesson: Path) -> list[str]:
    """The ids after `.. covers::` in the script, read without the extension."""
    lines = re.findall(r"^(?:# )?\.\. covers:: *(.+)$", lesson.read_text(encoding="utf-8"), re.M)
    return [fact for line in lines for fact in line.split()]


def test_a_covered_fact_is_followed_by_its_output(lesson, page, pages):
    for fact in claimed(lesson):
        anchor = page.soup.find(id=f"covers-{fact.lower().replace('.', '-')}")
        assert anchor, f"{fact} has no anchor"
        shown = [tag for tag in section_after(anchor) if tag.css.match(f"{EXECUTED}, .box.exercise")]
        assert shown, f"{fact}: no output, and no exercise, follows in its section"
        link = f"lessons/{lesson.stem}.html#{anchor['id']}"
        row = [
            row
            for row in pages["coverage.html"].soup.select("table.coverage-table tr")
            if row.find(href=link)
        ]
        assert [cells.td.get_text() for cells in row] == [fact]
        assert row[0].find_all("td")[1].get_text(), f"{fact}: docs/coverage.rst has no words for it"


def test_every_fact_has_one_lesson():
    counts = {"S0": 7, "S1": 13, "S2": 5, "S3": 9, "S4": 5}
    facts = {f"{text}.{n}" for text, count in counts.items() for n in range(1, count + 1)}
    assert sorted(fact for lesson in LESSONS for fact in claimed(lesson)) == sorted(facts)


def test_the_syllabus_sums_the_minutes_of_the_lessons(pages):
    texts = [path.read_text(encoding="utf-8") for path in LESSONS]
    minutes = [
        [int(number) for number in re.findall(rf":{part}: (\d+)", "".join(texts))]
        for part in ("teaching", "exercises")
    ]
    rows = [
        [cell.get_text() for cell in row.find_all("td")]
        for row in pages["instructors.html"].soup.select("table.syllabus tr")
    ]
    assert len(rows) == len(LESSONS) + 2
    assert rows[-1][1:] == [f"{sum(part)} min" for part in minutes]
    for row, teaching, exercises, text in zip(rows[1:-1], *minutes, texts, strict=True):
        assert row[0].startswith(text.splitlines()[1]) and row[1:] == [f"{teaching} min", f"{exercises} min"]


def test_each_lesson_has_a_card_of_its_own(pages):
    """With its picture, its sentence and its minutes, on the first page, too."""
    cards = pages["lessons/index.html"].soup.select(".sphx-glr-thumbcontainer")[: len(LESSONS)]
    pictures, texts = set(), []
    for card, path in zip(cards, LESSONS, strict=True):
        text = path.read_text(encoding="utf-8")
        teaching, exercises = (re.search(rf":{part}: (\d+)", text)[1] for part in ("teaching", "exercises"))
        title, sentence, minutes = [words.get_text() for words in card.select("p")]
        assert title == text.splitlines()[1] and minutes == f"{teaching} min, exercise {exercises} min"
        assert (
            sentence[:20]
            in pages[f"lessons/{path.stem}.html"].soup.select_one("article h1 ~ p:not([class])").text
        )
        assert card.img["width"] == "400" and card.img["height"] == "280" and card.img["loading"] == "lazy"
        pictures.add(pages["lessons/index.html"].file(card.img["src"]).read_bytes())
        texts.append([title, sentence, minutes])
    assert len(pictures) == len(LESSONS)
    assert (ROOT / "docs/_static/thumbnail.svg").read_bytes() not in pictures
    first_page = pages["index.html"].soup.select(".sphx-glr-thumbcontainer")
    assert [[words.get_text() for words in card.select("p")] for card in first_page] == texts
    assert {pages["index.html"].file(card.img["src"]).read_bytes() for card in first_page} == pictures


def test_every_name_of_a_manual_is_linked(pages):
    linked = {link["href"] for page in pages.values() for link in page.soup.select("a[href^=https]")}
    for manual in (ROOT / "docs/manuals").glob("*.inv"):
        lines = [line.split() for line in manual.read_text("utf-8").splitlines() if line[0] != "#"]
        anchors = [f"{page}#{'module-' * (kind == 'mod')}{name}" for name, kind, page in lines]
        assert not [one for one in anchors if not any(link.endswith(one) for link in linked)]


def test_every_page_of_text_has_a_description(pages):
    written = [
        page
        for name, page in pages.items()
        if page.soup.select_one("article section[id]") and name not in ("404.html", "genindex.html")
    ]
    texts = [page.soup.select_one("meta[name=description]") for page in written]
    assert len(texts) > 30
    assert all(text and len(text["content"]) <= 200 for text in texts)


def test_every_picture_keeps_its_place_free(pages):
    pictures = [
        (name, image) for name, page in pages.items() for image in page.soup.select("img:not(.toggler)")
    ]
    assert len(pictures) > 50
    assert not [
        (name, image["src"]) for name, image in pictures if not {"width", "height"} <= image.attrs.keys()
    ]


def test_pages_are_light(pages):
    for page in [page for name, page in pages.items() if name.startswith(("lessons/", "index", "errors"))]:
        files = {page.file(url) for url in loaded(page.soup) if page.file(url).suffix in (".css", ".js")}
        text = re.sub(
            r'<svg[^>]* class="drawing".*?</svg>', "", page.path.read_text(encoding="utf-8"), flags=re.S
        )
        weight = sum(len(gzip.compress(content)) for content in (text.encode(), *map(Path.read_bytes, files)))
        assert weight < LIMIT, f"{page.name}: {weight} bytes"


def test_every_part_of_the_pages_has_its_licence_listed(pages):
    """Scripts and styles that others wrote are on the page of licences; none of them brings a font."""
    files = {page.file(url) for page in pages.values() for url in loaded(page.soup)}
    parts = {file.name: file for file in files if file.suffix in (".js", ".css")}
    ours = {
        "gpulesson.css",
        "gpulesson.js",
        "message_search.js",
        "messages.js",
        "progress.js",
        "continue.js",
        "search.js",
        "sections.js",
    }
    table = pages["licences.html"].soup.select("table")[-1]
    listed = {code.get_text() for code in table.select("td:first-child code")}
    assert parts and {name for name in parts.keys() - ours if not name.startswith("play")} == listed
    assert not any("@font-face" in file.read_text(encoding="utf-8") for file in parts.values())


def test_every_message_is_in_the_section_that_is_said_to_show_it(pages):
    """As it is printed there, or quoted; numbers may be others."""
    by_path = {page.path: page for page in pages.values()}
    claims = [section for section in sections() if section.shown_in()]
    assert len(claims) >= 15
    for section in claims:
        errors = pages[f"{section.page}.html"]
        shown = errors.soup.find("section", id=section.anchor).find(text=re.compile(r"^Shown in ")).parent
        link = shown.a["href"]
        target = by_path[errors.file(link)].soup.find(id=link.partition("#")[2])
        text = (target if target.name == "section" else target.find_parent("section")).get_text()
        assert plain(section.message).rstrip(".") in plain(text), f"not in {link}: {section.message}"


def test_lesson_12_does_the_same_work_up_to_the_larger_batch(pages, warm, tmp_path):
    """As the build printed it, or a run here, where there is a GPU: it is about the CPU."""
    printed = pages["lessons/12_speed_ladder.html"].printed()
    if choose_device().type != "cpu":
        done = run_script(warm, ROOT / "examples/12_speed_ladder.py", tmp_path, GPULESSON_DEVICE="cpu")
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    found = dict(re.findall(r"^(\S.*?) {2,}(.* × the time .*|not here: .+)$", printed, re.M))
    # the same bits, from pictures to rows on the device, with and without reads
    for name in ("nothing changed", "index batching", "no read in the loop"):
        assert found[name].endswith("losses equal")
    # fused Adam rounds in another order
    assert float(re.search(r"losses (\S+) apart$", found["fused Adam"])[1]) < 1e-5
    assert found["one CUDA graph a step"] == "not here: there are no CUDA graphs on cpu"
    assert found["batches of 256"].endswith(" epochs")
