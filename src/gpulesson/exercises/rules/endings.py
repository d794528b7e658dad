"""Rules: how a program ended, by itself, by an error, or because it was stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import devices, errors
from gpulesson.exercises.trace import Trace

ERROR = Diagnosis(
    "error",
    "The program stopped before it was done.",
    "Read the last line of the message above first: it says what was wrong, the line says where.",
)
SYNTAX_ERROR = Diagnosis(
    "syntax-error",
    "Python cannot read the file, so nothing of it ran.",
    "Look at this line, and at the one above it: a bracket, a colon or a quotation mark.",
)
NUMPY_ON_DEVICE = Diagnosis(
    "numpy-on-device",
    "NumPy knows host memory only.",
    "Copy first, and leave autograd: tensor.detach().cpu().numpy().",
)
EXITED = Diagnosis(
    "exited",
    "A program that ends itself with a status other than 0 says that something went wrong.",
    "Look at what the line tests, and at what was printed before it: that is what is not yet right.",
)
VANISHED = Diagnosis(
    "vanished",
    "Nothing could be seen of what it did: os._exit, or a crash in a library, ends a process at once.",
    "Let the program run to its last line.",
)
TIME = Diagnosis(
    "time",
    "Either a loop never ends, or the work is too much for the time.",
    "Look at the loop around this line: what makes it stop? If the work is meant, allow more: "
    "--time-limit 300.",
)
IDLE = Diagnosis(
    "idle",
    "The program waits for something that does not come: an answer, a lock, another process.",
    "Look at what this line waits for. If the waiting is meant, allow more: --time-limit 300.",
)
MEMORY = Diagnosis(
    "memory",
    "Something grows without end, or is far larger than it looks.",
    "Look for a list that is only ever added to, and at the shapes of what is made here.",
)
ASKS_FOR_INPUT = Diagnosis(
    "asks-for-input",
    "Nobody is there to answer while a program is checked.",
    "Replace input() by a value in the program.",
)
NOT_TEXT = Diagnosis(
    "not-text",
    "Python source is text in UTF-8.",
    "Save the file as UTF-8: every editor offers that under “save as” or in its status bar.",
)
NO_TORCH = Diagnosis(
    "no-torch",
    "Without PyTorch there is nothing to check.",
    "Install it for your machine, as the page “Set up” shows; then: python -m gpulesson.",
)
NO_PRACTICE_GPU = Diagnosis(
    "no-practice-gpu",
    "The practice GPU stands on parts of PyTorch that this version does not have.",
    "Install a version that the course supports: pip install torch.",
)
SLOW_START = Diagnosis(
    "slow-start",
    "Nothing of your program had run yet.",
    "Try again; if it stays so, see how long python -c “import torch” takes.",
)

_DEVICES = re.compile(
    r"same device|same type|should be the same|type torch\.cuda|device type for|on device|is on cpu"
)


def raised(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the exception that ended the program was about."""
    seen = trace.error
    if seen is None:
        return
    if seen.type in ("SyntaxError", "IndentationError", "TabError") and len(seen.lines) == 1:
        yield source.failure(SYNTAX_ERROR, seen.site, f"Python says: {source.renumbered(seen.message)}.")
    elif "can't convert cuda" in seen.message and "numpy" in seen.message:
        yield source.failure(NUMPY_ON_DEVICE, seen.site, "A tensor on the GPU was asked for a NumPy array.")
    elif seen.type == "EOFError":
        yield source.failure(ASKS_FOR_INPUT, seen.site, "The program asked for input.")
    elif seen.type == "MemoryError" or "can't allocate memory" in seen.message:
        yield source.failure(MEMORY, seen.site, "The program asked for more memory than it is allowed.")
    elif trace.argmaxes:
        return  # the shapes that do not fit come from there
    elif seen.type == "RuntimeError" and _DEVICES.search(seen.message):
        yield devices.mixed(trace, seen, source)
    elif (finding := errors.known(seen, source)) is not None:
        yield finding
    else:
        message = seen.message.strip().split("\n")[0] or "(no message)"
        yield source.failure(ERROR, seen.site, f"{seen.type}: {message}")


def exited(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that the program ended itself with a status other than 0."""
    if trace.status == "exit" and trace.exit_code:
        what = f"The program ended itself with status {trace.exit_code}."
        yield source.failure(EXITED, trace.exit_at, what)
