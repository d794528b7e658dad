"""The pages of error messages, read from their sources: their sections, and the blocks of code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.rst"
PAGES = PAGE, ROOT / "docs" / "errors_rare.rst"
SECTION = re.compile(
    r"^\.\. _(?P<anchor>error-[\w-]+):\n\n``(?P<message>[^\n]+)``\n~+\n\n(?P<text>.*?)"
    r"(?=^\.\. _error-|^\S[^\n]*\n-{3,}$|\Z)",
    re.M | re.S,
)
BLOCK = re.compile(
    r"^\.\. code-block:: (?P<language>\w+)\n   :caption: (?P<caption>.+)\n\n(?P<code>(?:   .*\n|\n)+)", re.M
)
PREPARATION, CAUSE, FIX = "Before each block", "Usual cause", "Fix"

Run = Callable[[str], CompletedProcess[str]]


def blocks(text: str) -> dict[str, tuple[str, str]]:
    """Language and code of each block, by its caption."""
    return {
        found["caption"]: (found["language"], dedent(found["code"]).strip() + "\n")
        for found in BLOCK.finditer(text)
    }


@dataclass(frozen=True)
class Section:
    """A message of a page, and what stands below it."""

    anchor: str
    message: str
    text: str
    page: str = PAGE.stem

    @property
    def address(self) -> str:
        """Where it is on the site."""
        return f"{self.page}.html#{self.anchor}"

    @property
    def cited(self) -> bool:
        """Whether it says that its message was not reproduced."""
        return "\nNot reproduced here" in self.text

    def marked(self, words: str) -> bool:
        """Whether it has a comment with these words, which no reader sees: where it can be run."""
        return bool(re.search(rf"^\.\. .*{re.escape(words)}", self.text, re.M))

    def program(self, caption: str) -> str:
        """The block of this caption as a whole program."""
        own = [code for name, (_, code) in blocks(self.text).items() if name.startswith("Before")]
        return "\n".join([blocks(PAGE.read_text(encoding="utf-8"))[PREPARATION][1], *own, self.code(caption)])

    def code(self, caption: str) -> str:
        return blocks(self.text)[caption][1]

    def shown_in(self) -> str | None:
        """The label of the lesson's section that shows the message, if the page names one."""
        found = re.search(r"^Shown in :ref:`([\w-]+)`", self.text, re.M)
        return found[1] if found else None


def sections(pages: Iterable[Path] = PAGES) -> list[Section]:
    return [
        Section(*found.group("anchor", "message", "text"), page.stem)
        for page in pages
        for found in SECTION.finditer(page.read_text(encoding="utf-8"))
    ]


def plain(text: str) -> str:
    """A message without what varies: numbers, units of memory, line breaks. ``mat1`` stays as it is."""
    text = re.sub(r"(?<![A-Za-z_])\d+(?:\.\d+)?", "0", text)
    return " ".join(re.sub(r"\b[KMGT]iB\b", "MiB", text).split())


def problems(section: Section, run: Run) -> list[str]:
    """Run a section's cause and its fix; return what is not as the page says."""
    cause, fix = run(section.program(CAUSE)), run(section.program(FIX))
    message = plain(section.message)
    found = []
    if cause.returncode == 0 and not section.marked("only a warning"):
        found.append("the cause raises no error")
    if message not in plain(cause.stderr):
        found.append(f"the cause gives another message: {cause.stderr[-2000:]}")
    if fix.returncode != 0 or "Traceback" in fix.stderr or message in plain(fix.stderr):
        found.append(f"the fix fixes nothing: {fix.stderr[-2000:]}")
    return found
