"""Pages show what the committed files of results say, what programs printed, and the package's tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from _ext.first_page import LESSON, speeds
from _ext.hardware import COUNTS, step
from _ext.hardware import chart as steps_chart
from _ext.recorded.files import load, read_cells
from _ext.results import as_promised, chart, machine, sentences
from matplotlib.transforms import Bbox
from pages import ROOT, Page

from gpulesson_tools.planning.hardware import gpus, links


def plain(text: str) -> str:
    """Leave out what Sphinx changes in a text: quotes, the marks of code, spaces."""
    return re.sub(r"[`'’‘\"“”\s]", "", text.replace("--", "–").replace("...", "…"))


def rows(page: Page, name: str) -> list[list[str]]:
    """The texts of the cells of a page's tables of this kind, without their heads."""
    found = page.soup.select(f"table.{name} tbody tr")
    return [[plain(cell.get_text()) for cell in row.select("td")] for row in found]


def read(name: str) -> dict:
    return json.loads((ROOT / name).read_text("utf-8"))


SHOWN = [
    (path.stem, name)
    for path in sorted((ROOT / "docs").glob("*.rst"))
    for name in re.findall(r"^\.\. benchmark:: (\S+)", path.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), SHOWN)
def test_a_page_shows_all_that_a_benchmark_found(site, page, name):
    result, shown = read(f"benchmarks/results/{name}.json"), site.page(page)
    found = {text for row in rows(shown, "benchmark") for text in row}
    for row in result["rows"]:
        texts = [format(row[key], spec) for key, _, spec in result["columns"] if row.get(key) is not None]
        assert {*map(plain, texts)} <= found, row
    article = plain(shown.soup.article.get_text())
    assert all(plain(text) in article for text in (*sentences(result), machine(result["about"])))


@pytest.mark.slow
def test_a_chart_stands_above_its_folded_table_and_a_split_table_is_two(site):
    figure = site.page("results").soup.select_one("img.figure.only-dark[src*=benchmark-overhead]")
    assert figure.find_next("table").find_parent("details").summary.get_text().startswith("The table, of ")
    split = site.page("plan").soup.select("table.benchmark")[1:3]
    heads = [[cell.get_text(strip=True) for cell in table.select("th")] for table in split]
    assert heads[0][0] == heads[1][0] == "model" and heads[1][1] == "step" and "step" not in heads[0]
    right = split[0].select("td.text-right")
    assert right and all(re.match(r"\d", cell.get_text()) for cell in right)


@pytest.mark.slow
def test_a_headline_is_one_figure_of_a_benchmark(site):
    texts = [part.get_text() for part in site.page("results").soup.select_one(".headline").select("p")]
    result = read("benchmarks/results/gpu/time_to_accuracy.json")
    assert texts[0].removesuffix("×") in [format(one["value"], one["format"]) for one in result["claims"]]
    assert result["about"]["date"] in texts[-1] and result["about"]["torch"] in texts[-1]


@pytest.mark.slow
def test_the_first_page_shows_the_gain_that_was_recorded(site):
    recording = load(ROOT / f"docs/recordings/{LESSON}.json")
    texts = [part.get_text() for part in site.page("index").soup.select(".headline p")]
    found = speeds(recording, ROOT / f"examples/{LESSON}.py")
    assert bool(texts) == bool(found)
    if texts:
        assert found["times"] in texts[0] and recording.run.gpu in texts[-1]


def test_the_gain_is_not_that_of_a_cell_that_was_changed():
    script, recording = ROOT / f"examples/{LESSON}.py", load(ROOT / f"docs/recordings/{LESSON}.json")
    stale = replace(recording, cells=tuple(replace(cell, hash="0" * 16) for cell in recording.cells))
    assert speeds(stale, script) == {}
    if not {cell.hash for cell in recording.cells} <= {cell.hash for cell in read_cells(script)}:
        pytest.skip("lesson 1 was changed since it was recorded")
    found = speeds(recording, script)
    assert found["gpu"] == recording.run.gpu and re.fullmatch(r"CPU, \d+ cores", found["cpu"])
    assert int(found["few"]) < int(found["many"]) and float(found["times"]) > 1


@pytest.mark.slow
def test_the_promises_have_the_figures_of_their_tests(site):
    found = read("docs/trust.json")
    text = (ROOT / "docs/promises.rst").read_text("utf-8")
    named = " ".join(re.findall(r"^\.\. trust:: (.+)$", text, re.MULTILINE)).split()
    shown = rows(site.page("promises"), "trust")
    assert len(shown) == len(named) > 15
    for row, (what, figure, _) in zip(map(found["rows"].get, named), shown, strict=True):
        expected = (
            f"not run here: {row['not run']}" if "not run" in row else f"{row['done']:,} of {row['of']:,}"
        )
        assert (what, figure) == (plain(row["what"]), plain(expected))
    assert f"PyTorch {found['about']['torch']}, Python" in site.page("promises").soup.get_text()


GOOD = {"done": 5000, "of": 5000, "least": 5000, "kept": True}


@pytest.mark.parametrize(
    "change",
    [
        {"done": 4999, "kept": False},
        {"done": 4999},
        {"done": 10, "of": 10},
        {"done": 0, "of": 0, "least": 0},
        {"least": "0.05 of 5000"},
        {"kept": False},
    ],
)
def test_a_promise_that_failed_is_not_shown(change):
    assert as_promised(GOOD) and not as_promised({**GOOD, **change})


@pytest.mark.slow
def test_the_table_of_libraries_is_its_file(site):
    found = read("docs/libraries.json")["rows"].values()
    page = site.page("lessons/guides/learn_without_a_gpu")
    expected = [[f"{r['library']} {r['version']}", r["what"], r["before"], r["inside"]] for r in found]
    assert sorted(rows(page, "libraries")) == sorted([plain(text) for text in row] for row in expected)
    results = [{row["before"], row["inside"]} for row in found]
    ran = [one for one in results if not one & {"fails", "differs"}]
    text = " ".join(page.soup.get_text().split())
    assert f"Of {len(results)} programs with {len({row['library'] for row in found})} libraries" in text
    assert f"{len(ran)} ran on the practice GPU. {ran.count({'equal'})} had the CPU" in text


# -- what programs printed, and the package's tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command", "printed"),
    [
        ("index", "python circle.py", r"loss of the last batch: .*\nright on 500 new points: "),
        ("port", "python -m gpulesson port circle.py", r"circle.py .*GPU"),
        ("plan", "python -m gpulesson plan --gpu T4,A100 train.py", r"Plan of train.py: 3 steps"),
        ("review", "python -m gpulesson review train.py", r".*train.py"),
    ],
)
def test_a_command_is_shown_with_what_it_printed(site, page, command, printed):
    blocks = [block.get_text().strip() for block in site.page(page).soup.select("article pre")]
    place = blocks.index(command)
    assert re.match(printed, blocks[place + 1])
    if "train.py" in command:
        assert "optimizer.step()" in blocks[place - 1], "the script"


@pytest.mark.slow
def test_the_tables_of_gpus_links_and_numbers_of_gpus(site):
    assert [row[0] for row in rows(site.page("plan"), "gpus")] == [plain(gpu.name) for gpu in gpus.read()]
    scaling = site.page("scaling")
    assert [row[0] for row in rows(scaling, "links")] == [plain(link.name) for link in links.read()]
    ranks = rows(scaling, "ranks")
    assert [row[0] for row in ranks] == ["1", "8", "64", "1,024"] and len({*ranks[0][1:]}) == 1
    assert len(scaling.soup.select("img.figure[src*=steps-]")) == 2


def test_a_step_is_what_is_computed_or_what_is_sent():
    node, slow = links.of_gpu("A100"), links.network("10 GbE")
    assert step(3.0, 10**9, 8, node, slow).seconds == pytest.approx(3.0, rel=1e-3)
    sent = 2 * 7 / 8 * 1e9 / 1.25e9  # of eight machines, behind a forward pass of 0.1 s
    assert step(0.3, 10**9, 64, node, slow).seconds == pytest.approx(0.1 + sent, rel=1e-2)


# -- charts


def test_the_chart_of_steps_has_a_line_for_each_network():
    times = {"quick": [1.0] * 11, "slow": [1.0] * 4 + [3.0, 4.0, 4.5, 4.7, 4.8, 4.9, 5.0]}
    figure = steps_chart(times)
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == list(times.values())
    assert [text.get_text() for text in axes.texts] == ["quick", "slow"]
    assert tuple(axes.lines[0].get_xdata()) == COUNTS
    assert "slow: 1.00 s to 5.00 s" in figure.get_label()


RATIOS = {
    "title": "`A` against <B>",
    "columns": [["what", "what", ""], ["median", "median", ".2f"]],
    "rows": [
        {"what": "half", "min": 0.25, "median": 0.5, "max": 1},
        {"what": "twice", "min": 1, "median": 2, "max": 4},
        {"what": "a limit & more", "median": 4.2},
    ],
}


def test_a_chart_shows_each_row_on_a_scale_of_ratios():
    figure = chart(RATIOS)
    (axes,) = figure.axes
    assert figure.get_label().startswith("A against <B>: ") and axes.get_xscale() == "log"
    drawn = [sorted({float(x) for x in line.get_xdata()}) for line in axes.lines]
    # of each row the range, the median, and the stroke at 1
    assert drawn == [[0.25, 1], [0.5], [1], [1, 4], [2], [1], [4.2], [4.2], [1]]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["half", "0.50", "twice", "2.00", "a limit & more", "4.20"]


@pytest.mark.parametrize("rows", [RATIOS["rows"] * 4, [*RATIOS["rows"], {"what": "far", "median": 100475.4}]])
def test_no_line_or_mark_of_a_chart_goes_through_words(rows):
    figure = chart({**RATIOS, "rows": rows})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    words = [text.get_window_extent() for text in axes.texts]
    for line in axes.lines:
        ends = line.get_transform().transform(line.get_xydata())
        assert not [box for box in words if box.overlaps(Bbox([ends.min(0) - 1, ends.max(0) + 1]))]
    ticks = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(ticks) > 1 and not any(one.overlaps(other) for one, other in pairwise(ticks))


CLAIMS = [
    {"what": "`A` / B", "value": 1.02, "format": ".3f", "compare": "<=", "target": 1.01},
    {"what": "more", "value": 0.4, "format": ".0%", "compare": ">=", "target": 0.35},
    {"what": "plain", "value": 7, "format": ".0f", "compare": "", "target": 0},
]


def test_a_figure_says_its_target_and_that_it_is_missed():
    said = ["`A` / B: 1.020 (target: ≤ 1.01, missed)", "more: 40% (target: ≥ 35%)", "plain: 7", "A note."]
    assert list(sentences({"claims": CLAIMS, "notes": ["A note."]})) == said
