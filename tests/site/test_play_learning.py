"""Lesson 3's network learns in a browser as it does on the page, and as NumPy computes it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from browser import begun, opened

pytestmark = pytest.mark.slow
LESSON = "lessons/03_first_model"


def losses(data, rate, steps, forget=True):
    """Train the three layers in NumPy, and return each step's loss and how many flowers are right."""
    flowers, right_one = np.array(data["flowers"]), np.eye(3)[data["labels"]]
    parts = np.split(np.array(data["start"]), [40, 121])
    layers = [part.reshape(-1, ins + 1) for part, ins in zip(parts, (4, 8, 9), strict=True)]
    gradients = [np.zeros_like(layer) for layer in layers]
    found = []
    for _ in range(steps):
        inputs = [np.c_[flowers, np.ones(len(flowers))]]
        for layer in layers[:2]:
            inputs.append(np.c_[np.maximum(inputs[-1] @ layer.T, 0), np.ones(len(flowers))])
        powers = np.exp(inputs[2] @ layers[2].T)
        shares = powers / powers.sum(axis=1, keepdims=True)
        right = (shares.argmax(axis=1) == data["labels"]).sum()
        found.append((-np.log((shares * right_one).sum(axis=1)).mean(), right))
        slopes = (shares - right_one) / len(flowers)
        for k in (2, 1, 0):
            gradients[k] = gradients[k] * (not forget) + slopes.T @ inputs[k]
            slopes = ((slopes @ layers[k]) * (inputs[k] > 0))[:, :-1]
        layers = [layer - rate * gradient for layer, gradient in zip(layers, gradients, strict=True)]
    return [f"loss {loss:.4f}, {right} of {len(flowers)} right." for loss, right in found]


@pytest.fixture
def tab(browser, address):
    with opened(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        begun(tab, "learning")
        yield tab


@pytest.fixture(scope="module")
def data(site):
    return json.loads(site.page(LESSON).soup.select_one("[data-play] script").string)


def press(tab, name, times=1):
    """Press a button by keys alone, and return what the part then says."""
    button = tab.get_by_role("button", name=name, exact=True)
    for _ in range(times):
        button.press("Enter")
    return tab.locator(".learning-says").text_content()


def test_the_losses_in_the_browser_are_those_that_the_lesson_printed(tab, data, site):
    page = site.page(LESSON)
    printed = re.findall(r"^epoch +(\d+): loss ([\d.]+)$", page.printed(), re.M)
    tabled = [[cell.get_text() for cell in row("td")] for row in page.soup.select(".still tbody tr")]
    wanted = {int(step): loss for step, loss in [*printed, *tabled]}
    assert len(printed) == 3 and {1, 2, 3, 500} <= wanted.keys()
    begun = tab.locator(".learning-map .region").first.get_attribute("d")
    shown = {step: press(tab, "One step") for step in range(1, 11)}
    shown |= {step: press(tab, "Ten steps") for step in range(20, 501, 10)}
    for step, loss in wanted.items():
        assert shown[step].startswith(f"Step {step}: loss {loss}, ")
    computed = losses(data, 0.02, 500)
    assert shown == {step: f"Step {step}: {computed[step - 1]}" for step in shown}
    assert tab.locator(".learning-map .region").first.get_attribute("d") != begun
    assert press(tab, "Begin again") == "The network is untrained."
    assert tab.locator(".learning-map .region").first.get_attribute("d") == begun
    assert press(tab, "One step") == shown[1] and press(tab, "Run")
    tab.get_by_role("button", name="Run").wait_for()  # by itself, after as many steps as the lesson's
    assert tab.locator(".learning-says").text_content() == shown[500]


def test_the_five_calls_are_lit_one_after_another(tab, data):
    lit = tab.locator(".learning-stage .now code")
    assert not lit.count()
    for number, (code, _) in enumerate(data["calls"], 1):
        said = press(tab, "One call")
        assert lit.all_text_contents() == [code]
        assert said.startswith(f"Call {number}: " if number < 5 else "Step 1: loss ")
    assert [code for code, _ in data["calls"]][2::2] == ["optimizer.zero_grad()", "optimizer.step()"]


@pytest.mark.parametrize(("rate", "forget"), [(1, True), (0.0001, True), (0.02, False)])
def test_what_goes_wrong_is_what_goes_wrong_in_numpy(tab, data, rate, forget):
    tab.get_by_label("Learning rate").select_option(label=str(rate))
    if not forget:
        tab.get_by_label("without zero_grad").press("Space")
    expected = losses(data, rate, 100, forget)
    for step in (*range(1, 6), *range(15, 100, 10)):
        assert press(tab, "One step" if step < 6 else "Ten steps") == f"Step {step}: {expected[step - 1]}"


def test_without_javascript_there_is_a_table_of_losses(browser, address):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        assert tab.locator(".still td").first.is_visible()
        assert not tab.get_by_role("button", name="One call").count()
