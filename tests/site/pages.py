"""The real site: built from the sources of now, so that no test looks at an old one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from filelock import FileLock

ROOT = Path(__file__).parents[2]
BUILD = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-c", ".", "docs", "_build/html"]
SOURCES = ("benchmarks", "docs", "examples", "src")  # of a build
SOURCES += ("conf.py", "hatch_build.py", "pyproject.toml", ".gitignore", "LICENSE", "README.md")
LESSONS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
GUIDES = sorted((ROOT / "examples" / "guides").glob("*.py"))  # pages that ran, beside the lessons


def page_name(script: Path) -> str:
    """The page of a script, such as `lessons/01_name`."""
    return f"lessons/{script.relative_to(ROOT / 'examples').with_suffix('').as_posix()}"


@dataclass(frozen=True)
class Site:
    """A copy of the built site, which no other run changes.

    Attributes
    ----------
    html : Path
        What is published.
    lessons : Path
        What sphinx-gallery made of the lessons: scripts, notebooks, sources of pages.
    """

    html: Path
    lessons: Path

    def page(self, name: str) -> Page:
        """The page of that name, such as `index`; a test may not change it."""
        return read_page(self.html / f"{name}.html", self.html)

    def pages(self) -> list[Path]:
        return sorted(self.html.rglob("*.html"))


def build(to: Path, root: Path = ROOT, command: list[str] = BUILD) -> Site:
    """Build as `nox -s docs` does, in a copy of the sources, and copy the site; without changes, in seconds.

    So a reader's own site in `_build/html` stays as it is. One run of the tests at a time builds.
    """
    copy = root / "_build" / "tests"
    copy.mkdir(parents=True, exist_ok=True)
    of_the_tests = ("GPULESSON_DEVICE", "OMP_NUM_THREADS")  # the lessons compute with all threads
    environment = {name: value for name, value in os.environ.items() if name not in of_the_tests}
    with FileLock(root / "_build" / "tests.lock"):
        made = Path("docs", "lessons")  # by `nox -s docs`: what is out of date there runs again here
        if (root / made).is_dir() and not (copy / made).exists():
            shutil.copytree(root / made, copy / made)
        copy_sources(root, copy)
        run = subprocess.run(
            command,
            cwd=copy,
            env={**environment, "PYTHONPATH": str(copy / "src")},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert run.returncode == 0, f"the site does not build:\n{run.stdout}"
        html = shutil.copytree(copy / "_build" / "html", to / "html")
        lessons = shutil.copytree(copy / "docs" / "lessons", to / "lessons")
    return Site(html, lessons)


def copy_sources(root: Path, copy: Path) -> None:
    """Bring a copy up to date, but for what a build has made in it; the files keep their ages."""
    for name in SOURCES:
        for old in sorted((copy / name).rglob("*"), reverse=True):
            if old.is_file() and not {"lessons", "wheels"} & {*old.relative_to(copy).parts}:
                old.unlink()
        if (root / name).is_dir():
            made = shutil.ignore_patterns("__pycache__", "lessons", "wheels")
            shutil.copytree(root / name, copy / name, ignore=made, dirs_exist_ok=True)
        elif (root / name).is_file():
            shutil.copy2(root / name, copy / name)


@cache
def read_page(path: Path, site: Path) -> Page:
    """Read a page once for all tests of a worker: parsing takes most of their time."""
    return Page(path, site)


class Page:
    """A page of the site, and what it links to."""

    def __init__(self, path: Path, site: Path) -> None:
        self.path, self.site, self.name = path, site, path.relative_to(site).as_posix()
        self.soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        self.anchors = {tag[key] for key in ("id", "name") for tag in self.soup.find_all(attrs={key: True})}

    def printed(self) -> str:
        """What the lesson printed in this build, beside what is recorded of a GPU."""
        outputs = self.soup.select(".sphx-glr-script-out:not(.recorded *)")
        return "\n".join(output.get_text().strip() for output in outputs)

    def text(self) -> str:
        """What a reader sees, less code and output."""
        html = self.path.read_text(encoding="utf-8").partition("<body")[2].partition(">")[2]
        html = re.sub(r"<(script|style|pre|code|svg)\b.*?</\1>|<!--.*?-->", "", html, flags=re.DOTALL)
        return unescape(re.sub(r"<[^>]*>", "", html))

    def file(self, link: str) -> Path:
        """The file that a link within the site leads to; the 404 page's begin at the server's root."""
        target = re.split("[#?]", link)[0]
        if target.startswith("/"):
            return self.site / target.removeprefix(self.soup.html["data-content_root"])
        return Path(os.path.normpath(self.path.parent / target)) if target else self.path


def loaded(soup: BeautifulSoup) -> list[str]:
    """Every address that a browser fetches by itself."""
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
