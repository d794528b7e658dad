"""The film on its page: steps by button, slider and key, and a table where there is no JavaScript."""

from __future__ import annotations

import json

import pytest
from browser import opened

pytestmark = pytest.mark.slow


def test_a_film_steps_through_its_stops_by_keys_alone(browser, address, site):
    stops = json.loads(site.page("film").soup.select_one("[data-play] script").string)["stops"]
    with opened(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as window:
        tab = window.new_page()
        tab.goto(f"{address}film.html")
        says, place = tab.locator(".film-says"), tab.locator(".film-place")
        after = tab.get_by_role("button", name="Next", exact=True)
        after.focus()
        for number, stop in enumerate(stops, 1):
            assert place.text_content() == f"{number} of {len(stops)}"
            assert says.text_content() == f"{stop['where']}. {stop['says']}"
            now = tab.locator(".film-code .now .film-number").all_text_contents()
            assert now == [str(line) for line in range(stop["line"], stop["last"] + 1)]
            for side in ("host", "gpu"):
                chips = tab.locator(f".film-{side} li").all_text_contents()
                assert chips == [f"{name} {text}" for name, text, _ in stop[side]]
            tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowLeft")
        assert place.text_content() == f"{len(stops) - 1} of {len(stops)}"
        assert max(stop["queue"] for stop in stops) > 20
        slider = tab.get_by_role("slider")
        slider.focus()
        slider.press("Home")
        assert place.text_content() == f"1 of {len(stops)}"
        assert not tab.locator(".still").is_visible()


def test_a_film_is_a_table_without_javascript(browser, address, site):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}film.html")
        rows = tab.locator(".still tbody tr")
        stops = json.loads(site.page("film").soup.select_one("[data-play] script").string)["stops"]
        assert rows.count() == len(stops) and rows.first.is_visible()
        assert stops[0]["says"] in rows.first.text_content()
