"""The page of measured figures: it shows what the JSON file says, and asks for one that is missing."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from _ext.results import chart
from matplotlib.transforms import Bbox
from projects import CONF, lesson

RESULT = {
    "name": "speed",
    "title": "A against `B`",
    "about": {"device": "cpu: a processor", "torch": "2.15.0", "date": "2026-01-02", "steps_a_turn": 20},
    "columns": [["what", "what", ""], ["x", "ratio", ".2f"], ["y", "other", ".1f"]],
    "rows": [{"what": "`one`", "x": 1.2345, "y": 3}, {"what": "two", "x": 9}],
    "claims": [
        {"what": "`A` / B", "value": 1.02, "format": ".3f", "compare": "<=", "target": 1.01},
        {"what": "more", "value": 4.0, "format": ".1f", "compare": ">=", "target": 3.5},
        {"what": "plain", "value": 7, "format": ".0f", "compare": "", "target": 0},
    ],
    "notes": ["A note."],
}
PAGE = "Results\n=======\n\n.. benchmark:: speed\n"


@pytest.mark.slow
def test_the_table_the_figures_and_the_machine(project):
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.results")\n')
    project.write("docs/tables.rst", PAGE)
    project.write("examples/01_first.py", lesson())
    build = project.build()
    assert build.status and "there is no benchmark speed.py" in build.log
    project.write("benchmarks/speed.py", "")
    assert project.build().status == 0
    assert "Not measured yet: run nox -s bench -- speed." in project.page("tables").get_text()

    file = project.write("benchmarks/results/speed.json", json.dumps(RESULT))
    assert project.build().status == 0
    page = project.page("tables")
    rows = [[cell.get_text(strip=True) for cell in row.select("th, td")] for row in page.select("table tr")]
    assert rows == [["what", "ratio", "other"], ["one", "1.23", "3.0"], ["two", "9.00", ""]]
    right = [cell.get_text(strip=True) for cell in page.select("table .text-right")]
    assert right == ["ratio", "other", "1.23", "3.0", "9.00", ""]
    text = " ".join(page.get_text().split())
    assert [code.get_text() for code in page.select("article code")] == ["B", "one", "A"]
    assert "A / B: 1.020 (target: ≤ 1.01, missed)" in text
    assert "more: 4.0 (target: ≥ 3.5)" in text and "plain: 7" in text and "A note." in text
    assert "Measured on 2026-01-02: device cpu: a processor, torch 2.15.0, steps a turn 20." in text

    file.write_text(json.dumps({**RESULT, "title": "Another"}), encoding="utf-8")
    project.build()
    assert "Another" in project.page("tables").get_text()  # a new measurement is noticed


@pytest.mark.slow
def test_a_wide_table_is_cut_in_two(project):
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.results")\n')
    project.write("examples/01_first.py", lesson())
    project.write("docs/tables.rst", f"{PAGE}   :split: y\n")
    project.write("benchmarks/speed.py", "")
    project.write("benchmarks/results/speed.json", json.dumps(RESULT))
    assert project.build().status == 0
    tables = [
        [[cell.get_text(strip=True) for cell in row.select("th, td")] for row in found.select("tr")]
        for found in project.page("tables").select("table")
    ]
    assert tables == [
        [["what", "ratio"], ["one", "1.23"], ["two", "9.00"]],
        [["what", "other"], ["one", "3.0"]],  # a row without figures is left out
    ]
    project.write("docs/tables.rst", f"{PAGE}   :split: z\n")
    build = project.build()
    assert build.status and "there is no column 'z' to split at; the others are x, y" in build.log


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


@pytest.mark.slow
def test_a_chart_stands_above_its_table_where_it_is_asked_for(project):
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.results")\n')
    project.write("examples/01_first.py", lesson())
    project.write("docs/tables.rst", PAGE + "   :chart:\n\n.. benchmark:: speed\n")
    project.write("benchmarks/speed.py", "")
    project.write("benchmarks/results/speed.json", json.dumps({**RESULT, **RATIOS}))
    assert project.build().status == 0
    page = project.page("tables")
    charts = page.select("img.figure")
    assert [chart["class"][-1] for chart in charts] == ["only-light", "only-dark"]
    folded, shown = charts[1].find_all_next("table")
    assert folded.find_parent("details").summary.get_text() == "The table, of 3 rows"
    assert not shown.find_parent("details")


def test_no_line_of_a_chart_goes_through_words():
    figure = chart({**RATIOS, "rows": RATIOS["rows"] * 4})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    words = [text.get_window_extent() for text in axes.texts]
    for line in axes.lines:
        ends = line.get_transform().transform(line.get_xydata())
        assert not [box for box in words if box.overlaps(Bbox([ends.min(0) - 1, ends.max(0) + 1]))]
    ticks = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(ticks) > 1 and not any(one.overlaps(other) for one, other in pairwise(ticks))


def test_a_long_scale_of_ratios_has_room_for_its_marks():
    figure = chart({**RATIOS, "rows": [*RATIOS["rows"], {"what": "far", "median": 100475.4}]})
    figure.draw_without_rendering()
    ticks = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in pairwise(ticks))


@pytest.mark.slow
def test_a_headline_is_one_figure_of_a_benchmark(project):
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.results")\n')
    project.write("examples/01_first.py", lesson())
    project.write("benchmarks/results/speed.json", json.dumps(RESULT))
    large = "Results\n=======\n\n.. headline:: speed\n   :claim: {}\n   :unit: ×\n\n   times *B*\n"
    project.write("docs/tables.rst", large.format("`A` / B"))
    assert project.build().status == 0
    texts = [part.get_text() for part in project.page("tables").select(".headline > p")]
    assert texts == ["1.020×", "times B", "a processor, PyTorch 2.15.0, 2026-01-02 (target: ≤ 1.01, missed)"]
    project.write("docs/tables.rst", large.format("C"))
    build = project.build()
    assert build.status and "speed.json has 0 figures that begin with 'C', not one" in build.log
