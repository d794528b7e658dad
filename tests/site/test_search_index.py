"""What the search counts of a page; what it answers is asked in a browser, in test_browser.py."""

from pathlib import Path
from types import SimpleNamespace

import tomllib
from _ext import search
from _ext.search import Part


def index(folder, monkeypatch, words="", **pages):
    """The index of pages, each a list of sections, and the warnings."""
    (folder / "search_words.toml").write_text(words, encoding="utf-8")
    env = SimpleNamespace(srcdir=folder, gpulesson_sections=pages)
    said = []
    monkeypatch.setattr(search.logger, "warning", lambda text, *given: said.append(text % given))
    return search.weigh(env, str.lower, set()), said


def test_a_section_is_found_by_words_that_only_the_list_has(tmp_path, monkeypatch):
    sections = [Part("", "Page", ""), Part("a", "The GPU\u2019s memory", "Page"), Part("b", "Other", "Page")]
    words = '[page]\n"The GPU\'s memory" = "how much VRAM"\n[another]\n"Not in this build" = "x"'
    found, said = index(tmp_path, monkeypatch, words, page=sections)
    assert found["words"]["vram"].startswith("1") and not said


def test_each_page_that_the_list_names_is_there():
    root = Path(search.__file__).parents[2]
    named = tomllib.loads((root / "docs" / "search_words.toml").read_text(encoding="utf-8"))
    pages = [
        root / "examples" / f"{page.removeprefix('lessons/')}.py"
        if page.startswith("lessons/")
        else root / "docs" / f"{page}.rst"
        for page in named
    ]
    assert len(pages) > 20 and all(page.is_file() for page in pages)


def test_a_heading_that_was_renamed_is_told(tmp_path, monkeypatch):
    _, said = index(tmp_path, monkeypatch, '[page]\n"Old" = "x"', page=[Part("", "New", "")])
    assert said == ["search_words.toml: page has no section 'Old'"]


def test_long_code_makes_a_section_long(tmp_path, monkeypatch):
    short = Part("a", "A", "", text=["load a file"])
    listing = Part("b", "B", "", text=["load a file"], code=["x = 1 " * 3000])
    found, _ = index(tmp_path, monkeypatch, page=[short, listing])
    first, second = found["words"]["load"][1], found["words"]["load"][3]
    assert first > second
