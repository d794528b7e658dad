"""The pages of error messages: each cause gives its message, each fix none, and a pasted message is found."""

from __future__ import annotations

import ast
import inspect
import mmap
import multiprocessing
import re
import sysconfig
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from browser import opened
from errors_page import CAUSE, FIX, PAGES, Run, Section, blocks, plain, problems, sections
from pages import ROOT
from playwright.sync_api import Page, expect
from processes import run_script
from sampling import some

from practice_gpu import errors

WRITTEN = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
SECTIONS = sections()
TO_RUN = [section for section in SECTIONS if not section.cited]
CITED = [section for section in SECTIONS if section.cited]
INSTALLED = Path(sysconfig.get_path("platlib"))


def anchor(section: Section) -> str:
    return section.anchor


@pytest.fixture(scope="module")
def run(warm, tmp_path_factory) -> Run:
    """Runs a program in an empty folder, on a GPU or the practice GPU, or without any."""

    @cache
    def run(program: str, gpu: bool = True):
        script = tmp_path_factory.mktemp("program") / "script.py"
        script.write_text(program, encoding="utf-8")
        folder = script.parent / "empty"
        folder.mkdir()
        hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
        return run_script(warm, script, folder, practice=gpu, **hidden)

    return run


def cannot_be_run(section: Section) -> str | None:
    """Why this machine cannot show the message, if it cannot."""
    if section.marked("with PyTorch for CUDA") and (torch.version.cuda is None or torch.cuda.is_available()):
        return "PyTorch says this where it is built for CUDA and finds no driver"
    if section.marked("only where it is simulated") and torch.cuda.is_available():
        return "a real GPU does not say this"
    if section.marked("where processes are forked") and multiprocessing.get_start_method() != "fork":
        return "workers are not forked here"
    return None


def run_where(section: Section, run: Run) -> Run:
    return lambda program: run(program, not section.marked("without a GPU"))


def test_every_heading_of_the_pages_is_a_section_that_was_read():
    headings = [re.findall(r"^~+$", page.read_text(encoding="utf-8"), re.M) for page in PAGES]
    assert len(SECTIONS) == sum(map(len, headings)) == len({s.message for s in SECTIONS})
    assert len(TO_RUN) >= 60 and len(CITED) >= 5
    assert len([section for section in TO_RUN if not cannot_be_run(section)]) >= 55
    for section in SECTIONS:
        assert {CAUSE, FIX} <= set(blocks(section.text)), section.anchor
        assert len(section.text.split("\n.. code-block::")) == len(blocks(section.text)) + 1, section.anchor


@pytest.mark.slow
@pytest.mark.parametrize("section", some(TO_RUN, every=8, ids=anchor))
def test_the_cause_gives_the_message_and_the_fix_gives_none(section, run):
    if reason := cannot_be_run(section):
        pytest.skip(reason)
    assert not problems(section, run_where(section, run))


@pytest.mark.parametrize("section", CITED, ids=anchor)
def test_what_is_not_run_has_a_source_and_its_words_are_pytorchs(section):
    [paragraph] = [part for part in section.text.split("\n\n") if part.startswith("Not reproduced here, ")]
    assert re.search(r"<https://[\w./#-]+>`__", paragraph)
    name, words = re.search(r"^\.\. words in (\S+): (.+)$", section.text, re.M).groups()
    assert words in section.message
    source = (ROOT / "src" if name.startswith("practice_gpu/") else INSTALLED) / name
    if not source.exists():
        pytest.skip(f"this PyTorch has no {name}")
    with (
        source.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        assert content.find(words.encode()) >= 0


def planted(cause: str, fix: str, message: str = "division by zero") -> Section:
    text = "".join(
        f".. code-block:: python\n   :caption: {name}\n\n   {code}\n\n"
        for name, code in ((CAUSE, cause), (FIX, fix))
    )
    return Section("error-planted", message, text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "found"),
    [
        (planted("1 / 0", "1 / 1"), 0),
        (planted("1 / 0", "1 / 1", "division by nothing"), 1),
        (planted("print('division by zero')", "1 / 1"), 2),
        (planted("1 / 0", "1 / 0"), 1),
        (planted("1 / 0", "import sys; print('Traceback', file=sys.stderr)"), 1),
        (planted("1 / 0", "import sys; print('division by zero', file=sys.stderr)"), 1),
    ],
)
def test_the_check_finds_what_is_wrong(section, found, run):
    assert len(problems(section, run)) == found


def test_numbers_do_not_count_but_names_do():
    assert plain("cuda:3 of\n 1.50 GiB, mat1") == plain("cuda:0 of 20.00 MiB, mat1")
    assert plain("mat1 is on cpu") != plain("mat2 is on cpu")


# -- what the practice GPU says


MAKERS = {  # of errors: with what their texts on the pages were made
    "two_devices": (0, -1),
    "wrong_argument": ("mat1", -1, 0, "wrapper_CUDA_addmm"),
    "out_of_memory": (2 << 30, 0, 8 << 30, 8 << 30, (6 << 30) + (1 << 29)),
    "wrong_capture_mode": ("strict",),
    "nothing_captured": ("replay",),
    "not_numpy": (0,),
    "not_pinnable": (torch.float32, 0),
    "wrong_generator": ("cuda", "cpu"),
    "wrong_gradient": (-1, 0),
    "wrong_recurrent": ("hidden", -1, 0),
    "wrong_attention": (0, -1, -1),
    "wrong_convolution": ("weight", torch.float32, 0, -1, ""),
    "wrong_indices": (-1,),
    "wrong_mask": (-1, 0),
    "wrong_lengths": (1, torch.int64, 0),
    "not_simulated": ("torch.cuda.temperature",),
    "absent": ("histogram", "bin_ct"),
    "half_fft": ([20],),
    "not_deterministic": ("histc", False),
    "unchecked": ("integers are divided by zero", "ZeroDivisionError"),
    "wrong_storage": (0, -1),
    "invalid_gradient": ("Function DoubleBackward returned an invalid", 0, 0, -1),
    "wrong_convolution_type": ("weight", torch.float16, torch.float32),
    "wrong_sections": (0,),
    "wrong_type": ("expected TensorOptions(dtype=long int, device=cpu, got device=meta", "cpu", "cuda:0"),
    "wrong_legacy_device": ("cuda", "cpu"),
    "on_host_only": ("apply_",),
    "wrong_partner": ("map_", "other", "torch.cuda.FloatTensor", "torch.FloatTensor"),
    "moved_by_hook": (
        types.SimpleNamespace(__name__="to_host"),
        "torch.cuda.FloatTensor",
        "torch.FloatTensor",
    ),
    "no_allocator": (errors.INVALID_ARGUMENT, 9),
    "no_stream": (9, 1),
    "other_settings": (8 << 30, 1, "practice_gpu(memory='64 MiB')"),
    "no_backend": ("cpu",),
    "bitwise": ("BAND",),
    "same_gpu": (0, 1, 0, (2, 30)),
    "unlike_calls": (
        0,
        "allreduce of 2 elements, torch.float32",
        1,
        "allreduce of 3 elements, torch.float32",
    ),
}


def made_by_the_practice_gpu() -> list[Exception]:
    """One of every error that the practice GPU's module of errors can make."""
    found = []
    for name, function in inspect.getmembers(errors, inspect.isfunction):
        kind = inspect.signature(function).return_annotation
        public = not name.startswith("_") and name != "compared"  # whose texts are looked for one by one
        if public and inspect.isclass(kind) and issubclass(kind, Exception):
            found.append(function(*MAKERS.get(name, ())))
    return found


def raised_elsewhere() -> list[str]:
    """The longest piece of each text with which the practice GPU's other modules raise an error."""
    texts = []
    for path in sorted((ROOT / "src/practice_gpu").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]:
            if isinstance(call, ast.Call) and getattr(call.func, "id", "AttributeError") != "AttributeError":
                pieces = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
                texts.append(max(map(str, pieces), key=len, default=""))
    return texts


def test_every_error_that_the_practice_gpu_makes_is_on_a_page():
    made = made_by_the_practice_gpu()
    assert len(made) >= 30
    messages = [plain(section.message) for section in SECTIONS]
    for error in made:
        assert any(message.rstrip(".") in plain(str(error)) for message in messages), str(error)


def test_every_text_that_is_raised_elsewhere_is_on_a_page():
    raised = raised_elsewhere()
    assert len(raised) >= 10
    pages = plain("".join(WRITTEN.values()))
    for text in errors.COMPARED.values():
        assert plain(str(errors.compared(text, 0, -1, 1))) in pages
    assert not [text for text in raised if plain(text).strip(";. ") not in pages]


# -- the search


ADDRESS = {section.anchor: section.address for section in SECTIONS}
# what a reader pastes, each after the label of its section; "none" has no section here
PASTED = [
    tuple(line.split(": ", 1))
    for line in (ROOT / "tests/site/pasted_messages.txt").read_text(encoding="utf-8").splitlines()
]
# whole texts, as people paste them into reports of theirs
REPORTS = [
    (label, text.strip("\n"))
    for label, text in re.findall(
        r"^=== (error-[\w-]+)\n(.*?)(?=^=== error|\Z)",
        (ROOT / "tests/site/pasted_reports.txt").read_text(encoding="utf-8"),
        re.M | re.S,
    )
]
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/project/train.py", line 214, in <module>
    loss = criterion(model(images), labels.to(device))  # Input and weight on the device
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/env/lib/python3.12/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/env/lib/python3.12/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{message}
"""


def with_traceback(query: str) -> list[str]:
    """A message as it is, and at the end of a traceback."""
    message = query if "Error" in query else f"RuntimeError: {query}"
    return [query, TRACEBACK.format(message=message)]


def with_other_numbers(message: str) -> str:
    changed = re.sub(r"(?<![A-Za-z_])\d+", lambda number: str(int(number[0]) + 3), message)
    return f"RuntimeError: {changed}"


QUERIES = {
    "messages": [(label, text) for label, query in PASTED for text in with_traceback(query)],
    "reports": REPORTS,
    "headings": [(section.anchor, with_other_numbers(section.message)) for section in SECTIONS],
}


@pytest.fixture(scope="module")
def tab(browser, address) -> Iterator[Page]:
    with opened(browser, base_url=address, bypass_csp=True) as context:
        yield context.new_page()


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUERIES)
def test_a_pasted_text_fits_its_section_best(tab, kind):
    tab.goto("search.html")
    labels, texts = zip(*QUERIES[kind], strict=True)
    assert len(labels) >= 40 and len({*labels}) >= 25
    fitting = "texts => texts.map((text) => Messages.fitting(text)[0]?.id ?? 'none')"
    found = tab.evaluate(fitting, texts)
    assert [*zip(found, texts, strict=True)] == [*zip(labels, texts, strict=True)]


def results(tab: Page, query: str) -> list[str]:
    """Paste a text into the field at the side, as a reader does; return the addresses that are found."""
    if "/search.html" not in tab.url:
        tab.goto("index.html")
    field = tab.locator(".sidebar-search")
    field.fill(query)  # the browser drops line breaks
    with tab.expect_navigation():
        field.press("Enter")
    tab.wait_for_function("document.querySelector('p.search-summary')?.innerText")
    links = tab.locator("#search-results ul.search > li > a")
    return [link.get_attribute("href") for link in links.all()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "query"), [PASTED[0], (PASTED[1][0], with_traceback(PASTED[1][1])[1]), *REPORTS[:2]]
)
def test_the_search_begins_with_the_section_that_fits(tab, label, query):
    found = results(tab, query)
    assert found and found[0] == ADDRESS[label], found[:4]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["http", "file"])
def test_the_page_of_messages_has_a_field_of_its_own(site, browser, address, start):
    with opened(browser) as context:
        tab = context.new_page()
        page = "errors" if start == "http" else "errors_rare"
        tab.goto(f"{address if start == 'http' else site.html.as_uri() + '/'}{page}.html")
        field, found = tab.get_by_label("Paste your message"), tab.locator(".search-field ul > li")
        for label, text in REPORTS[::10]:
            field.fill(text)
            link = found.first.locator(
                "a"
            )  # it may come later; no wait_for_function: the policy forbids eval
            expect(link, label).to_have_attribute("href", re.compile(f"{re.escape(ADDRESS[label])}$"))
        field.fill("zzzz")
        assert "No section fits" in found.inner_text()
        field.fill("")
        assert found.count() == 0
        label, text = REPORTS[0]
        field.fill(text)
        field.press("Enter")
        tab.wait_for_url(f"**/{ADDRESS[label]}")


@pytest.mark.slow
def test_the_page_of_the_search_has_a_field_and_says_what_to_try(browser, address):
    with opened(browser, viewport={"width": 375, "height": 700}) as context:
        tab = context.new_page()
        tab.goto(f"{address}search.html")
        field = tab.get_by_label("Paste an error message")
        side = tab.locator(".sidebar-search")
        assert side.evaluate("field => getComputedStyle(field).visibility") == "hidden"
        field.fill("qqqq zzzz")
        with tab.expect_navigation():
            field.press("Enter")
        tab.get_by_text("Nothing was found").wait_for()
        assert field.input_value() == "qqqq zzzz"
        advice = tab.locator("h2", has_text="If nothing fits").locator("+ ul")
        assert "last line" in advice.inner_text() and advice.locator("a[href='errors.html']").is_visible()


@pytest.mark.slow
def test_every_section_is_in_a_list_that_needs_no_script(site):
    links = site.page("errors").soup.select(".messages a")
    addresses = [link["href"] for link in links]
    assert sorted(addresses) == sorted(s.address.removeprefix("errors.html") for s in SECTIONS)
    names = [link.text for link in links]
    assert len(names) == len({*names}) and max(map(len, names)) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_a_section_has_its_address_and_its_cause_and_fix_are_marked(site, name):
    page = site.page(name).soup
    here = [section for section in SECTIONS if section.page == name]
    for section in here:
        assert page.find("section", id=section.anchor).h3.get_text().startswith(section.message)
    for kind, caption in (("cause", CAUSE), ("fix", FIX)):
        marked = [block.select_one(".caption-text").text for block in page.select(f".{kind}")]
        assert marked == [caption] * len(here)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("section", some(TO_RUN, every=3, ids=anchor))
def test_all_that_python_prints_leads_to_the_section(tab, section, run):
    if reason := cannot_be_run(section):
        pytest.skip(reason)
    printed = run_where(section, run)(section.program(CAUSE)).stderr
    assert results(tab, printed)[0] == section.address
