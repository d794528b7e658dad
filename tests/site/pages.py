"""The real site: brought up to date first, so that no test looks at an old one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build" / "html"
LESSONS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
GUIDES = sorted((ROOT / "examples" / "guides").glob("*.py"))  # pages that ran, beside the lessons


def page_name(script: Path) -> str:
    """The page of a script, such as `lessons/01_name`."""
    return f"lessons/{script.relative_to(ROOT / 'examples').with_suffix('').as_posix()}"


def build() -> None:
    """Build as `nox -s docs` does; without changes since the last build, that takes seconds."""
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-c", ".", "docs", str(SITE)]
    run = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.returncode == 0, f"the site does not build:\n{run.stdout}"


class Page:
    """A page of the site, and what it links to."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.relative_to(SITE).as_posix()
        self.soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        self.anchors = {tag[key] for key in ("id", "name") for tag in self.soup.find_all(attrs={key: True})}

    def text(self) -> str:
        """What a reader sees, less code and output."""
        soup = BeautifulSoup(str(self.soup.body), "html.parser")
        for tag in soup.find_all(["script", "style", "pre", "code", "svg"]):
            tag.decompose()
        return soup.get_text()

    def file(self, link: str) -> Path:
        """The file that a relative link leads to."""
        target = re.split("[#?]", link)[0]
        return Path(os.path.normpath(self.path.parent / target)) if target else self.path


def loaded(soup: BeautifulSoup) -> list[str]:
    """Every address that a browser fetches of its own accord."""
    found = [tag["src"] for tag in soup.find_all(src=True)]
    found += [
        tag["href"] for tag in soup.find_all("link", href=True) if "canonical" not in tag.get("rel", ())
    ]
    found += [tag[key] for key in ("data", "poster", "action") for tag in soup.find_all(attrs={key: True})]
    sets = [part.split()[0] for tag in soup.find_all(srcset=True) for part in tag["srcset"].split(",")]
    styles = [*soup.find_all("style"), *soup.find_all(style=True)]
    return found + sets + [url for tag in styles for url in css_addresses(f"{tag.string} {tag.get('style')}")]


def css_addresses(css: str) -> list[str]:
    """Every address that a style sheet fetches."""
    found = re.findall(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""", css)
    return [url for pair in found for url in pair if url and not url.startswith("data:")]


def section_after(anchor: Tag) -> list[Tag]:
    """Every element behind an anchor and in the same section."""
    section = anchor.find_parent("section")
    return [tag for tag in anchor.find_all_next(True) if section in tag.parents]
