"""docs/drawings/*.svg: inline on pages, several on one page, and separate images in notebooks."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import furo
import pytest
from colours import Colour, colour, contrast

DRAWINGS = sorted((Path(__file__).parents[2] / "docs" / "drawings").glob("*.svg"))
THEME = Path(furo.__file__).parent / "theme" / "furo" / "static" / "styles" / "furo.css"
XMLNS = "http://www.w3.org/2000/svg"
ELEMENTS = {"svg", "title", "desc", "style", "rect", "circle", "path", "text", "tspan"}
# the colours and sizes are the style's alone, and nothing can refer to anything or run
ATTRIBUTES = {"aria-labelledby", "class", "id", "role", "viewBox"}
ATTRIBUTES |= {"d", "x", "y", "width", "height", "rx", "cx", "cy", "r"}
PHONE = 343  # pixels: the column of text on a phone
LEAST_TEXT = 14  # pixels


def parsed(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text("utf-8").replace(f' xmlns="{XMLNS}"', "", 1))


def style(path: Path) -> str:
    (element,) = parsed(path).iter("style")
    return element.text or ""


def mixed(top: Colour, opacity: float, ground: Colour) -> Colour:
    return tuple(opacity * a + (1 - opacity) * b for a, b in zip(top, ground, strict=True))


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_says_what_it_shows_and_needs_nothing_else(path: Path) -> None:
    root = parsed(path)
    title, desc = root.find("title"), root.find("desc")
    assert title is not None and desc is not None
    assert len((title.text or "").split()) >= 2
    assert 1 <= len(re.findall(r"\.(?:\s|$)", desc.text or "")) <= 3, "sentences"
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{path.stem}-title {path.stem}-desc"
    assert [title.get("id"), desc.get("id")] == [f"{path.stem}-title", f"{path.stem}-desc"]
    assert {element.tag for element in root.iter()} <= ELEMENTS
    assert {name for element in root.iter() for name in element.attrib} <= ATTRIBUTES
    source = path.read_text("utf-8")
    assert source.count(XMLNS) == 1, "a separate image needs its name space"
    assert not re.search(r"<!DOCTYPE|<\?xml-s|//|url\(|@import", source.replace(XMLNS, ""))


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_text_is_large_enough_on_a_phone(path: Path) -> None:
    left, top, width, height = map(float, parsed(path).get("viewBox", "").split())
    assert (left, top) == (0, 0) and height > 0
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;]*?([\d.]+)px", style(path))]
    assert len(sizes) == style(path).count("font:") + style(path).count("font-size:") >= 1
    assert min(sizes) * PHONE / width >= LEAST_TEXT


def test_drawings_on_one_page_leave_each_other_and_the_page_alone() -> None:
    assert len(DRAWINGS) > 1
    ids = Counter(
        element.get("id") for path in DRAWINGS for element in parsed(path).iter() if "id" in element.attrib
    )
    assert [name for name, times in ids.items() if times > 1] == []
    (rules,) = {style(path) for path in DRAWINGS}
    plain = re.sub(r"/\*.*?\*/|@media[^{]*\{", "", rules, flags=re.S)
    selectors = [one.strip() for several in re.findall(r"([^{}]+)\{", plain) for one in several.split(",")]
    assert [one for one in selectors if not re.match(r"svg(:root)?\.drawing\b", one)] == []
    used = {
        name
        for path in DRAWINGS
        for element in parsed(path).iter()
        for name in element.get("class", "").split()
    }
    assert used <= set(re.findall(r"\.([a-z]+)", " ".join(selectors))), "a class without a rule"


def test_colours_are_seen_on_the_grounds_of_the_theme() -> None:
    rules, theme = style(DRAWINGS[0]), THEME.read_text("utf-8")
    declared = re.findall(r"--(\w+):\s*(?:var\([^,)]*,\s*)?(#\w+)", rules)
    assert len(declared) == rules.count("#") == 6  # ink and ground have two schemes
    light = {name: colour(written) for name, written in declared[:4]}
    dark = {**light, **{name: colour(written) for name, written in declared[4:]}}
    opacity = float(re.findall(r"fill-opacity: ([\d.]+)", rules)[0])
    for page, scheme in enumerate((light, dark)):
        of_theme = {  # the light value is the first, the dark one the second
            name: colour(re.findall(rf"--color-{name}:(#\w+)", theme)[page])
            for name in ("foreground-primary", "background-primary", "background-secondary")
        }
        inks = [scheme.pop("ink"), of_theme.pop("foreground-primary")]
        for ground in (scheme.pop("ground"), *of_theme.values()):
            for name, line in scheme.items():
                assert contrast(line, ground) >= 3, name
            for ink in inks:
                for fill in (ink, *scheme.values()):
                    assert contrast(ink, mixed(fill, opacity, ground)) >= 4.5
