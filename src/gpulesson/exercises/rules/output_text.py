"""What a program printed, read as accuracies."""

from __future__ import annotations

import re
from typing import NamedTuple

_OF = r"\s*(?:/|of|out of)\s*(\d+)\b"
_RIGHT = re.compile(r"\b(correct|right|score|recogni[sz]ed)\b", flags=re.IGNORECASE)
_PROGRESS = re.compile(r"epoch|iteration|step|batch", flags=re.IGNORECASE)


class Claim(NamedTuple):
    """A number that the program printed, as a fraction, and half a unit of its last digit."""

    value: float
    tolerance: float


def claims(text: str, samples: int = 0) -> list[Claim]:
    """Return the accuracies that a line of output states: beside the word, or as “k of n”.

    Parameters
    ----------
    text : str
        The line.
    samples : int
        How many there are: “k of n” with another n may count epochs, where the line has that word.
    """
    if _PROGRESS.search(text):
        count = rf"(?<![\d.])\d+{_OF}"
        text = re.sub(count, lambda found: found[0] if int(found[1]) == samples else "", text)
    text = re.sub(r"(?<![\d.,])(\d{1,3}),(\d+)(?![\d.,])", r"\1.\2", text)  # a decimal comma
    words = list(re.finditer(r"acc(?:uracy|uracies|\b|\.)", text, flags=re.IGNORECASE))
    found = []
    if words:
        behind = re.split(r"\bloss", text[words[0].end() :], flags=re.IGNORECASE)[0]
        found = _stated_in(behind) or _stated_in(text[: words[0].start()])[-1:]
    if not found:
        found = [counted(*pair) for pair in re.findall(rf"\b(\d+){_OF}", text)]
    if not found and not words and _RIGHT.search(text):
        found = _stated_in(text, likely_only=True)
    return [claim for claim in found if 0 <= claim.value <= 1]


def of_training(text: str) -> bool:
    """Tell whether a line of output speaks of the training part alone."""
    text = text.lower()
    return bool(re.search(r"\btrain", text)) and not re.search("test|valid", text)


def only_a_number(text: str) -> bool:
    """Tell whether a line holds a number and nothing else, but for brackets and a percent sign."""
    return bool(re.fullmatch(r"\W*\d*[.,]?\d+\s*%?\W*", text))


def _stated_in(text: str, likely_only: bool = False) -> list[Claim]:
    """Read the numbers that can be accuracies: percentages, fractions, counts; else the first number."""
    numbers = list(re.finditer(rf"(?<![\d.])(\d*\.?\d+(?:e-\d+)?)\s*(%?)(?:{_OF})?", text))
    likely = [m for m in numbers if m[2] or "." in m[1] or m[3]]
    return [
        counted(m[1], m[3]) if m[3] and m[1].isdigit() else stated(m[1], m[2])
        for m in likely or numbers[: 0 if likely_only else 1]
    ]


def stated(digits: str, percent: str) -> Claim:
    """Read a number as a fraction: ``("95.8", "%")`` and ``("0.958", "")`` say the same."""
    value, tolerance = float(digits), 0.5 * 10.0 ** -len(digits.partition(".")[2])
    scale = 0.01 if percent or value > 1 else 1
    return Claim(value * scale, tolerance * scale * 1.001 + 1e-6)  # float32 shows in 17 digits


def counted(right: str, of: str) -> Claim:
    return Claim(int(right) / max(1, int(of)), 1e-9)
