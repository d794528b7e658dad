"""Progress bars, shown only to a person: in a captured log every refresh would become a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

# Set by Jupyter's server and by Colab for the kernels of a notebook that a person has open; a kernel that a
# program runs (nbclient, nbconvert) has neither.
OPEN_NOTEBOOK = ("JPY_SESSION_NAME", "COLAB_RELEASE_TAG")


def person_watches() -> bool:
    """Return whether standard error is a terminal, or this is a notebook that a person has open."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    return "ipykernel" in sys.modules and any(name in os.environ for name in OPEN_NOTEBOOK)


def epoch_bar(epochs: Iterable[int], total: int) -> Iterable[int]:
    """Wrap `epochs`, `total` of them, in a tqdm bar if a person watches and tqdm is installed."""
    if not person_watches():
        return epochs
    try:
        from tqdm import tqdm
    except ImportError:
        return epochs
    return tqdm(epochs, total=total, desc="training", unit="epoch")  # type: ignore[no-any-return]


def show_loss(bar: Iterable[int], loss: float) -> None:
    """Show a loss beside the bar, if there is one."""
    show = getattr(bar, "set_postfix_str", None)
    if show is not None:
        show(f"loss {loss:.4f}")
