"""The roof of lesson 15: what its slider says, against the lesson's own output and independent arithmetic."""

from __future__ import annotations

import json
import re

import pytest
from browser import begun, opened

pytestmark = pytest.mark.slow
PAGE = "lessons/15_what_an_operator_costs"
SAYS = r"([\d.]+) FLOP per byte\. The limit is (\w+): .+ which is ([\d.]+) % of the arithmetic\."


def test_a_point_moves_along_each_roof_by_keys_alone(browser, address, site):
    page = site.page(PAGE)
    machines = json.loads(page.soup.select_one("[data-play=roofline] script").string)["machines"]
    printed = float(re.search(r"^ridge +([\d.]+)", page.printed(), re.M)[1])
    assert machines[0]["flop"] / machines[0]["bytes"] == pytest.approx(printed, rel=0.02)
    with opened(browser) as window:
        tab = window.new_page()
        tab.goto(f"{address}{PAGE}.html")
        begun(tab, "roofline")
        says, slider = tab.locator(".roofline-says"), tab.get_by_role("slider")
        for number, machine in enumerate(machines):
            tab.get_by_label("Machine").select_option(index=number)
            slider.press("Home")
            limits = []
            for power in range(15):
                assert tab.locator(".roofline-place").text_content() == f"Batch {2**power:,}"
                intensity, limit, share = re.match(SAYS, says.text_content()).groups()
                weights, rows = 4096 * 4096, 2 * 4096 * 2**power
                expected = 2 * weights * 2**power / (weights + rows) / machine["size"]
                reached = min(1, expected * machine["bytes"] / machine["flop"])
                assert float(intensity) == pytest.approx(expected, rel=0.01)
                assert float(share) == pytest.approx(100 * reached, rel=0.06)
                assert limit == ("arithmetic" if reached == 1 else "memory")
                limits.append(limit)
                slider.press("ArrowRight")
            assert sorted(set(limits)) == ["arithmetic", "memory"] and limits == sorted(limits, reverse=True)


def test_the_roofs_are_a_table_without_javascript(browser, address):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}{PAGE}.html")
        rows = tab.locator("[data-play=roofline] tbody tr")
        assert rows.count() == 24 and rows.first.is_visible()
        assert re.search(r"H200, bfloat16, data sheet\s*4,096.*arithmetic", rows.last.text_content())
