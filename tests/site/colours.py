"""How well one colour is seen on another."""

from __future__ import annotations

Colour = tuple[float, ...]  # red, green, blue from 0 to 1


def colour(written: str) -> Colour:
    """Read `#rrggbb` or `#rgb`."""
    digits = written[1:] if len(written) == 7 else "".join(digit * 2 for digit in written[1:])
    return tuple(int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(colour: Colour) -> float:
        linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
