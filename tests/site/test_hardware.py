"""The tables of GPUs and links, and the chart of step times against the number of GPUs."""

from __future__ import annotations

import pytest
from _ext.hardware import COUNTS, chart, step
from projects import CONF, INDEX

from gpulesson_tools.planning.hardware import gpus, links

CONF = CONF + 'extensions.append("_ext.hardware")\n'
PAGE = """Home
====

.. steps-by-ranks:: {}
   :seconds: {}
   :gradients: 1000000000
   :networks: {}

.. links::

.. gpus::
"""


def test_a_step_is_what_is_computed_or_what_is_sent():
    node, slow = links.of_gpu("A100"), links.network("10 GbE")
    assert step(3.0, 10**9, 8, node, slow).seconds == pytest.approx(3.0, rel=1e-3)
    sent = 2 * 7 / 8 * 1e9 / 1.25e9  # of eight machines, behind a forward pass of 0.1 s
    assert step(0.3, 10**9, 64, node, slow).seconds == pytest.approx(0.1 + sent, rel=1e-2)


def test_the_chart_has_a_line_for_each_network():
    times = {"quick": [1.0] * 11, "slow": [1.0] * 4 + [3.0, 4.0, 4.5, 4.7, 4.8, 4.9, 5.0]}
    figure = chart(times)
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == list(times.values())
    assert [text.get_text() for text in axes.texts] == ["quick", "slow"]
    assert tuple(axes.lines[0].get_xdata()) == COUNTS and axes.get_xlabel() == "GPUs"
    assert "slow: 1.00 s to 5.00 s" in figure.get_label()


@pytest.mark.slow
def test_a_page_shows_chart_and_tables(project):
    project.write("conf.py", CONF)
    project.write("docs/index.rst", PAGE.format("A100", 0.3, "10 GbE, InfiniBand NDR") + INDEX)
    build = project.build()
    assert build.status == 0, build.log
    page = project.page("index")
    assert len(page.select("img.figure")) == 2
    rows = [[cell.get_text(strip=True) for cell in row.select("td")] for row in page.select("table.ranks tr")]
    assert [row[0] for row in rows if row] == ["1", "8", "64", "1,024"]
    assert rows[1] == ["1", "0.30 s, 100 %", "0.30 s, 100 %"]
    names = [row.td.get_text().strip() for row in page.select("table.links tbody tr")]
    assert names == [link.name for link in links.read()]
    names = [row.td.get_text().strip() for row in page.select("table.gpus tbody tr")]
    assert names == [gpu.name for gpu in gpus.read()]


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
