"""The run that one can stop on lesson 6: how it goes on is what the lesson and its code do."""

from __future__ import annotations

import ast
import json
import re

import pytest
from browser import begun, opened

pytestmark = pytest.mark.slow
LESSON = "lessons/06_save_load_resume"


def test_only_a_run_with_everything_saved_goes_on_as_if_nothing_had_happened(site):
    page = site.page(LESSON)
    data = json.loads(page.soup.select_one("[data-play=stopped] script").string)
    whole, after = data["whole"], data["after"]
    assert after and all(way == whole[int(stop) :][: len(way)] for stop, (*_, way) in after.items())
    assert all(way != whole[int(stop) :][: len(way)] for stop, ways in after.items() for way in ways[:-1])
    printed = dict(re.findall(r"^(model.*?|without a break) +(\d\.\d{3})$", page.soup.get_text(), re.M))
    epoch, optimizer, scheduler = (
        2 ** data["parts"].index(part) for part in ("epoch", "optimizer", "scheduler")
    )
    ways = {
        "model": epoch,
        "model and scheduler": epoch + scheduler,
        "model and optimizer": epoch + optimizer,
    }
    found = {name: f"{after['8'][way][0]:.3f}" for name, way in ways.items()}
    assert printed == found | {"without a break": f"{whole[8]:.3f}"}


def test_ticks_and_the_stop_change_words_and_code_by_keys_alone(browser, address, site):
    data = json.loads(site.page(LESSON).soup.select_one("[data-play=stopped] script").string)
    with opened(browser, viewport={"width": 1280, "height": 900}) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        part = begun(tab, "stopped")
        says, code = part.locator(".stopped-says"), part.locator(".stopped-code")
        part.get_by_role("slider").press("Home")
        stop, ways = next(iter(data["after"].items()))
        for box in part.get_by_role("checkbox").all():
            losses = ways[
                sum(2**at for at, one in enumerate(part.get_by_role("checkbox").all()) if one.is_checked())
            ]
            usual = data["whole"][int(stop) :]
            most = max(abs(loss - other) for loss, other in zip(losses, usual, strict=False))
            assert f"In epoch {int(stop) + 1} the loss is {losses[0]:.3f};" in says.text_content()
            assert float(re.search(r"difference is (\S+),", says.text_content())[1]) == pytest.approx(
                most, rel=0.05
            )
            ast.parse(code.text_content())
            before = code.text_content().count("\n")
            box.press("Space")
            assert code.text_content().count("\n") > before
        assert says.text_content().startswith("The same:")
        assert "set_rng_state" in code.text_content() and not part.locator(".still").is_visible()


def test_without_javascript_a_table_says_it(browser, address):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        rows = tab.locator("[data-play=stopped] .still tbody tr").all_inner_texts()
    losses = dict(row.split("\t", 1) for row in rows)
    assert losses["everything"] == losses["without a stop"] != losses["the weights alone"]
