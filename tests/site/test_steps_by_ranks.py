"""The chart of step times against the number of GPUs, and the table of links."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from _ext.results import WIDTH
from _ext.scaling import COUNTS, chart, step
from projects import CONF, INDEX

from gpulesson.planning.hardware import links

CONF = CONF + 'extensions.append("_ext.scaling")\n'
PAGE = """Home
====

.. steps-by-ranks:: {}
   :seconds: {}
   :gradients: 1000000000
   :networks: {}

.. links::
"""


def test_a_step_is_what_is_computed_or_what_is_sent():
    node, slow = links.of_gpu("A100"), links.network("10 GbE")
    assert step(3.0, 10**9, 8, node, slow).seconds == pytest.approx(3.0, rel=1e-3)
    sent = 2 * 7 / 8 * 1e9 / 1.25e9  # of eight machines, behind a forward pass of 0.1 s
    assert step(0.3, 10**9, 64, node, slow).seconds == pytest.approx(0.1 + sent, rel=1e-2)


def test_the_chart_stays_in_its_picture_and_rises():
    times = {"quick": [1.0] * 11, "slow": [1.0] * 4 + [3.0, 4.0, 4.5, 4.7, 4.8, 4.9, 5.0]}
    svg = ElementTree.fromstring(chart(times))
    height = float(svg.get("height"))
    lines = [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in svg.findall("polyline")
    ]
    assert [len(line) for line in lines] == [len(COUNTS)] * 2
    assert all(0 <= x <= WIDTH and 0 <= y <= height for line in lines for x, y in line)
    assert len({y for _, y in lines[0]}) == 1
    heights = [y for _, y in lines[1]]
    assert heights == sorted(heights, reverse=True) and heights[3] == lines[0][0][1]
    words = [text.text for text in svg.findall("text")]
    assert {"quick", "slow", "1,024", "GPUs"} <= set(words)
    assert "slow: 1.00 s to 5.00 s" in svg.get("aria-label")


@pytest.mark.slow
def test_a_page_shows_chart_and_tables(project):
    project.write("conf.py", CONF)
    project.write("docs/index.rst", PAGE.format("A100", 0.3, "10 GbE, InfiniBand NDR") + INDEX)
    build = project.build()
    assert build.status == 0, build.log
    page = project.page("index")
    assert len(page.select("svg.chart polyline")) == 2
    rows = [[cell.get_text(strip=True) for cell in row.select("td")] for row in page.select("table.ranks tr")]
    assert [row[0] for row in rows if row] == ["1", "8", "64", "1,024"]
    assert rows[1] == ["1", "0.30 s, 100 %", "0.30 s, 100 %"]
    names = [row.td.get_text().strip() for row in page.select("table.links tbody tr")]
    assert names == [link.name for link in links.read()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "networks", "message"),
    [("P100", "10 GbE", "no link for 'P100'"), ("A100", "a string", "unknown network 'a string'")],
)
def test_an_unknown_name_fails_the_build(project, gpu, networks, message):
    project.write("conf.py", CONF)
    project.write("docs/index.rst", PAGE.format(gpu, 0.3, networks) + INDEX)
    build = project.build()
    assert build.status != 0 and message in build.log
