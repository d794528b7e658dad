"""Films on pages: steps and variants by key, a table without JavaScript, and what lessons say of theirs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from _ext import programs
from browser import begun, opened

from practice_gpu import practice_gpu

pytestmark = pytest.mark.slow
PAGES = {
    "index": "",
    "film": "",
    "lessons/02_tensors_and_devices": "as it should be, the copy is not kept, made on the GPU at once",
    "lessons/04_training_loop": "as it should be, the batch is not moved, Adagrad, made before the move, "
    "the loss printed in each step",
    "lessons/08_was_it_faster": "as it should be, no wait at the end, no wait at the start",
    "lessons/10_where_did_my_memory_go": "4,096 rows, 8,192 rows",
}


@pytest.fixture
def variants(site):
    """Returns the variants of the film on a page, by their names."""

    def variants(page: str) -> dict[str, dict]:
        text = site.page(page).soup.select_one("[data-play=film] script").string
        assert len(text.encode()) < 60_000
        return {each["name"]: each for each in json.loads(text)}

    return variants


@pytest.mark.parametrize("page", PAGES)
def test_a_film_has_its_variants_and_is_short(variants, page):
    films = variants(page)
    assert ", ".join(films) == PAGES[page]
    assert all(3 <= len(film["stops"]) <= 30 for film in films.values())


@pytest.mark.parametrize("page", ["film", "lessons/04_training_loop"])
def test_a_film_steps_through_the_stops_of_each_variant_by_keys_alone(browser, address, variants, page):
    with opened(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as window:
        tab = window.new_page()
        tab.goto(f"{address}{page}.html")
        film = begun(tab, "film")
        says, place = film.locator(".film-says"), film.locator(".film-place")
        after, slider = film.get_by_role("button", name="Next", exact=True), film.get_by_role("slider")
        most = 0
        for name, variant in variants(page).items():
            if most:
                stood = place.text_content().split()[0]
                film.locator("input:checked").focus()
                tab.keyboard.press("ArrowDown")
                assert film.get_by_role("radio", name=name).is_checked()
                assert place.text_content().split()[0] == str(min(int(stood), len(variant["stops"])))
            slider.focus()
            slider.press("Home")
            after.focus()
            stops = variant["stops"]
            for number, stop in enumerate(stops, 1):
                assert place.text_content() == f"{number} of {len(stops)}"
                assert says.text_content() == f"{stop['where']}. {stop['says']}"
                now = film.locator(".film-code .now .film-number").all_text_contents()
                assert now == [str(line) for line in range(stop["line"], stop["last"] + 1)]
                for side in ("host", "gpu"):
                    chips = film.locator(f".film-{side} li").all_text_contents()
                    assert chips == [f"{name} {text}" for name, text, *_ in stop[side]]
                tab.keyboard.press("ArrowRight")
            assert film.locator(".film-code code").all_text_contents() == [
                line or " " for line in variant["texts"][stops[0]["file"]].split("\n")
            ]
            tab.keyboard.press("ArrowLeft")
            assert place.text_content() == f"{len(stops) - 1} of {len(stops)}"
            most = max(most, *(stop["queue"] for stop in stops))
        assert most > 20
        assert not film.locator(".still").is_visible()


def test_a_film_is_a_table_without_javascript(browser, address, variants):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}lessons/04_training_loop.html")
        rows, below = tab.locator(".film tbody tr"), tab.locator(".film .still p").all_text_contents()
        first, *others = variants("lessons/04_training_loop").values()
        assert rows.count() == len(first["stops"]) and rows.first.is_visible()
        assert first["stops"][0]["says"] in rows.first.text_content()
        assert len(below) == len(others)
        for text, film in zip(below, others, strict=True):
            assert text.startswith(film["name"]) and text.endswith(film["stops"][-1]["says"])
        assert "# the batch stays on the CPU" in below[0]


def test_the_two_pages_with_one_script_have_one_film(site):
    film, other = (str(site.page(page).soup.select_one(".film")) for page in ("index", "film"))
    assert film == other


def test_a_script_is_filmed_once_as_long_as_what_films_it_is_the_same(monkeypatch):
    filmed = []
    monkeypatch.setattr(programs, "ONE_BY_ONE", SimpleNamespace(submit=lambda *call: filmed.append(call)))
    env = SimpleNamespace(app=None)
    for source, script in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "x")):
        monkeypatch.setattr(programs, "sources", lambda app, source=source: source)
        programs.once(env, "script.py", {"": script})
    assert [variants[""] for _, _, variants in filmed] == ["x", "y", "x"]


def test_notebooks_have_no_film(site):
    assert "two steps of training: what" in site.page("lessons/04_training_loop").soup.text
    assert "two steps of training: what" not in (site.lessons / "04_training_loop.ipynb").read_text("utf-8")


# -- what lessons say of their films


def run(film: dict) -> None:
    (text,) = film["texts"].values()
    with practice_gpu(force=True):
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("page", "failing"),
    [
        ("lessons/02_tensors_and_devices", {"the copy is not kept": "scores = model(flowers)"}),
        (
            "lessons/04_training_loop",
            {
                "the batch is not moved": "outputs = model(inputs)",
                "Adagrad, made before the move": "optimizer.step()",
            },
        ),
    ],
)
def test_a_variant_ends_with_the_error_of_the_practice_gpu(variants, page, failing):
    for name, film in variants(page).items():
        (text,), last = film["texts"].values(), film["stops"][-1]
        if name in failing:
            with pytest.raises(RuntimeError) as raised:
                run(film)
            assert last["says"].endswith(f"The script ends here: RuntimeError: {raised.value}")
            assert text.split("\n")[last["line"] - 1].strip() == failing[name]
        else:
            run(film)
            assert last["kind"] != "error"


def test_a_tensor_made_on_the_gpu_is_not_copied(variants):
    usual, _, made = variants("lessons/02_tensors_and_devices").values()
    flowers = "4,800 bytes"
    assert [stop["to"] for stop in usual["stops"] if stop["to"]] == [flowers, "60 bytes"]
    assert [stop["to"] for stop in made["stops"] if stop["to"]] == ["60 bytes"]


def test_a_loss_that_is_printed_in_each_step_empties_the_queue(variants):
    usual, *_, printed = variants("lessons/04_training_loop").values()
    for film, queue in ((usual, 29), (printed, 0)):
        lines = film["texts"]["one_step.py"].split("\n")
        begins = lines.index("    inputs, targets = rows[i : i + 100], labels[i : i + 100]") + 1
        assert [stop["queue"] for stop in film["stops"] if stop["line"] == begins][-1] == queue


def test_a_clock_that_does_not_wait_leaves_kernels_in_the_queue(variants):
    films = variants("lessons/08_was_it_faster").values()
    looks = [[stop["queue"] for stop in film["stops"] if "clock" in stop["says"]] for film in films]
    assert looks == [[0, 0], [0, 3], [1, 0]]  # three products; the kernel that makes x


def test_the_memory_of_a_step_is_that_of_the_rules_of_the_lesson(variants):
    for rows, film in zip((4096, 8192), variants("lessons/10_where_did_my_memory_go").values(), strict=True):
        lines = film["texts"]["memory.py"].split("\n")
        at = {lines[stop["line"] - 1].strip(): stop for stop in film["stops"]}
        model = 4 * (64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)
        batch = rows * (64 * 4 + 8)
        kept = 4 * rows * (256 + 256 + 10) + 512  # two ReLUs, the loss, and the number of rows
        outputs = 4 * rows * 10
        forward = at["loss = nn.functional.cross_entropy(outputs, classes)"]["used"][0]
        assert forward - at["optimizer.step()"]["used"][0] == kept
        assert at["loss.backward()"]["used"][0] == 4 * model + batch + outputs + 4
        assert at["optimizer.step()"]["used"][0] == at["loss.backward()"]["used"][0]
