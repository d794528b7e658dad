"""The words of the pages: plain ones, terms explained at their first use, short cells, no heading twice."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
GUIDES = sorted((ROOT / "examples" / "guides").glob("*.py"))
TEMPLATE = ROOT / "docs" / "lesson_template.py"  # to be copied
PAGES = sorted((ROOT / "docs").glob("*.rst")) + sorted((ROOT / "examples").rglob("GALLERY_HEADER.rst"))
GLOSSARY = ROOT / "docs" / "glossary.rst"

LINES = 20  # of a cell that is not folded
WORDS_AND_CELLS = {range(1, 8): (1800, 16), range(8, 99): (2200, 20)}  # of a lesson's text that is not folded

# what a page does not say -> what it says instead
WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"judg(e|es|ed|ing)": "evaluate",
    r"climb(s|ed|ing)?": "reach",
    r"trainings|a training(?=[.,;:?!)])": "a run",
    r"lopsided|forthwith": "a plain word",
    r"stand(s|ing)? in(?=[.,;:?!)]| for\b)": "replace, use instead",
    r"bores?": "a plain word",
    r"born|newborn": "made",
    r"left behind": "still on the CPU",
    r"somebody|whoever": "you, or who it is",
    r"mind (that|the|its|his|her|their)": "name what goes wrong",
    r"tells? whether": "return whether",
    r"anew|afresh": "again",
    r"in the place of": "instead of",
    r"of (its|their) own(?=[.,:;])": "its own, their own",
    r"(?<!there\s)(?:is|are|was|were) no (?!more|less|longer|faster|slower)(?:\w+)(?=[.,:; ])": "is not a",
}


def text_blocks(path: Path) -> str:
    """The text of a page, of a script without its code."""
    if path.suffix == ".rst":
        return path.read_text(encoding="utf-8")
    _, blocks = split_code_and_text_blocks(path)
    return "\n\n".join(block.content for block in blocks if block.type == "text")


def cells(path: Path) -> list[str]:
    _, blocks = split_code_and_text_blocks(path)
    return [block.content.strip("\n") for block in blocks if block.type == "code"]


def comments(path: Path) -> str:
    """The docstrings and comments of a module, without the names and the code in them."""
    source = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            found.append(ast.get_docstring(node) or "")
    return re.sub(r"^(>>>|\.\.\.| *[\w, ]+ : ).*$", "", "\n".join(found), flags=re.M)


def headings(text: str) -> list[str]:
    return [found[1] for found in re.finditer(r"^(\S.*)\n([=~^*-])\2{3,}$", text, re.M)]


def without_box(text: str, name: str) -> str:
    return re.sub(rf"^\.\. {name}::.*\n(?:(?: +.*)?\n)*", "\n", text, flags=re.M)


def prose(text: str) -> str:
    """What a reader reads as sentences: no headings, code or addresses; links to terms stay as they are."""
    text = re.sub(r"^\S.*\n([=~^*-])\1{3,}$", "", text, flags=re.M)
    text = re.sub(r"^( *)\.\. (code-block|parsed-literal)::.*\n(?:(?:\1 +.*)?\n)*", "\n", text, flags=re.M)
    text = re.sub(r"^ *\.\. (_|covers|drawing|film|script|exercise|toctree).*$", "", text, flags=re.M)
    text = re.sub(r"^ +:[\w-]+:(?!`).*$", "", text, flags=re.M)  # options
    text = re.sub(r"``.+?``", " ", text, flags=re.S)
    text = re.sub(r":(?!term)[\w:]+:`[^`]*`", " ", text)
    return re.sub(r"`([^`<]*)<[^>]*>`__?", r"\1", text)


def reading(path: Path) -> tuple[int, int]:
    """The words that a reader of the page reads, and the cells: without what is folded, and the exercise."""
    text = text_blocks(path)
    for box in ("fold", "instructor-note", "exercise", "solution", "code-block", "list-table"):
        text = without_box(text, box)
    text = re.sub(r"^ +(Yes|No)\b.*\n(?: +\S.*\n)*", "", text, flags=re.M)  # unfolded with an answer
    text = re.sub(r"^ *\.\. (?!question)\S.*$|^ +:[\w-]+:(?!`).*$", "", text, flags=re.M)
    text = re.sub(r"<[^>]*>`", "`", text)
    words = [word for word in text.split() if re.search(r"\w", word)]
    return len(words), sum(not cell.startswith("# fold:") for cell in cells(path))


def unwanted(text: str) -> list[str]:
    """The words that a page should not use, each with what to say instead."""
    plain = re.sub(r":term:`([^`<]*).*?`", r"\1", prose(text))
    return [
        f"{found[0]!r}: {instead}"
        for words, instead in WORDS.items()
        for found in re.finditer(rf"\b(?:{words})\b", plain, re.I)
    ]


def glossary() -> list[str]:
    return re.findall(r"^   (\S.*)$", GLOSSARY.read_text(encoding="utf-8"), re.M)


def unexplained(text: str, terms: list[str]) -> list[str]:
    """The terms of a lesson's text that are used before, or without, their link to the glossary."""
    text = prose(without_box(text, "overview"))
    text = re.sub(r"\s+", " ", text)
    linked: dict[str, int] = {}

    def hide(link: re.Match[str]) -> str:
        target = re.search(r"<(.+)>$", link[1])
        linked.setdefault((target[1] if target else link[1]).lower(), link.start())
        return "\0" * len(link[0])

    text = re.sub(r":term:`([^`]+)`", hide, text)
    problems = [f"{name!r} is not in the glossary" for name in linked if name not in map(str.lower, terms)]
    for term in sorted(terms, key=len, reverse=True):  # device memory before device
        as_written = 0 if re.search("[A-Z]", term) else re.I
        pattern = re.compile(rf"(?<![\w/.-]){re.escape(term)}(?:e?s)?(?![\w/-])", as_written)
        first = pattern.search(text)
        if first and not linked.get(term.lower(), len(text) + 1) < first.start():
            problems.append(f"{term!r} in: …{text[max(0, first.start() - 40) : first.end() + 20]}…")
        text = pattern.sub(lambda found: "\0" * len(found[0]), text)
    return problems


UNWANTED = (
    *(
        "It mends this",
        "We judge it",
        "It climbs",
        "Two trainings",
        "It is lopsided",
        "It stands in.",
        "It bores",
    ),
    *(
        "It is born",
        "It is left behind",
        "Somebody came",
        "Mind the gap",
        "It tells whether",
        "It starts anew",
    ),
    *("in the place of it", "A process of its own.", "This is no error."),
)


def test_each_unwanted_word_is_found():
    assert len(UNWANTED) == len(WORDS) and all(len(unwanted(text)) == 1 for text in UNWANTED)
    assert not unwanted("There is no network here, and it is no faster. It has its own rows.")


@pytest.mark.parametrize(
    "path", [*LESSONS, *GUIDES, *PAGES, TEMPLATE], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_page_uses_plain_words(path):
    assert not unwanted(text_blocks(path))


@pytest.mark.parametrize("folder", ["src", "docs/_ext"])
def test_docstrings_and_comments_use_plain_words(folder):
    modules = sorted((ROOT / folder).rglob("*.py"))
    found = {path.name: words for path in modules if (words := unwanted(comments(path)))}
    assert len(modules) > 20 and not found


@pytest.mark.parametrize("path", [*LESSONS, *GUIDES, TEMPLATE], ids=lambda path: path.stem)
def test_a_term_is_linked_where_it_is_first_used(path):
    assert not unexplained(text_blocks(path), glossary())


@pytest.mark.parametrize("path", [*LESSONS, *GUIDES], ids=lambda path: path.stem)
def test_cells_are_short(path):
    lengths = [len(cell.split("\n")) for cell in cells(path) if not cell.startswith("# fold:")]
    assert len(lengths) > 5
    assert max(lengths) <= LINES, [cell for cell in cells(path) if len(cell.split("\n")) > LINES]


@pytest.mark.parametrize("path", [*LESSONS, *GUIDES], ids=lambda path: path.stem)
def test_nothing_stands_beside_the_mark_of_a_cell(path):
    """sphinx-gallery would leave it out."""
    marks = re.findall(r"^# %%.*", path.read_text("utf-8"), re.MULTILINE)
    assert len(marks) > 5 and set(marks) == {"# %%"}


def test_no_heading_stands_twice():
    counts = Counter(title for path in [*LESSONS, *GUIDES, *PAGES] for title in headings(text_blocks(path)))
    assert counts.pop("Exercise") == len(LESSONS)
    assert len(counts) > 50 and not [title for title, count in counts.items() if count > 1]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_asks_and_says_what_it_needs(path):
    text = text_blocks(path)
    assert text.lstrip().startswith(f"{int(path.name[:2])} · "), "the title begins with the number"
    assert 2 <= len(re.findall(r"^\.\. question:: .+\?$", text, re.M)) <= 4
    assert len(re.findall(r"^   \.\. prereq::$", text, re.M)) == 1, "in the overview"


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_read_in_its_stated_time(path):
    """By a reader who takes a minute for 110 words, and one for a cell; a beginner takes longer."""
    words, shown = reading(path)
    limits = next(most for numbers, most in WORDS_AND_CELLS.items() if int(path.name[:2]) in numbers)
    assert words <= limits[0] and shown <= limits[1], f"{words} words, {shown} cells"
    minutes = words / 110 + shown
    stated = int(re.search(r":teaching: (\d+)", path.read_text(encoding="utf-8"))[1])
    assert -2 <= stated - minutes <= 4, f"{words} words and {shown} cells take {minutes:.0f} minutes"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("A :term:`tensor` and more tensors.", 0),
        ("Tensors, then a :term:`tensor`.", 1),
        ("A tensor.", 1),
        ("A ``tensor``, and\n\nTensors\n=======\n", 0),
        ("The :term:`device memory` is not the device.", 1),
        (":term:`Batches <batch>` and batch-wise work.", 0),
        ("A :term:`tensr`.", 1),
        ("\n.. overview::\n   :teaching: 1\n\n   - A tensor.\n\nThe end.", 0),
    ],
)
def test_the_check_finds_a_term_before_its_link(text, problems):
    assert len(unexplained(text, ["tensor", "batch", "device", "device memory"])) == problems
