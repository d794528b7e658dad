"""Rules: how a program ended, by itself, by an error, or because it was stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import devices, errors, slices, source_text
from gpulesson.exercises.trace import ErrorSeen, Trace

ERROR = Diagnosis(
    "error",
    "The program stopped here, before its end.",
    "Read the message: it says what went wrong, and the line number says where. Printing the values used "
    "on that line often shows why.",
)
SYNTAX_ERROR = Diagnosis(
    "syntax-error",
    "Python cannot read the file, so nothing of it ran.",
    "Look at this line and the one above it for a missing bracket, colon or quotation mark.",
)
NUMPY_ON_DEVICE = Diagnosis(
    "numpy-on-device",
    "NumPy works only with the CPU's memory.",
    "Copy the tensor to the CPU first: tensor.detach().cpu().numpy().",
)
COPY_THROWN_AWAY = Diagnosis(
    "move-thrown-away",
    "to() and cpu() return a copy of a tensor, and the tensor itself stays where it is. NumPy works only "
    "with the CPU's memory.",
    "Keep the copy, under the same name, as in x = x.cpu().",
)
EXITED = Diagnosis(
    "exited",
    "A status other than 0 means that the program itself found something wrong.",
    "Look at what this line tests, and at the lines printed before it: they show what is not right yet.",
)
NO_SUCH_KEY = Diagnosis(
    "no-such-key",
    "A dictionary gives back only what was put into it, under the same name.",
    "Print the names that are there, with keys(), and use one of them, or put the entry in before.",
)
KEY_TWICE = Diagnosis(
    "key-twice",
    "A dictionary keeps one value for each name: of two entries with one name, the last alone counts.",
    "Give each entry its own name.",
)
NO_SUCH_FILE = Diagnosis(
    "no-such-file",
    "A file is found only by the path under which it was saved.",
    "Compare this path with the one in the line that saves, and see that the saving line ran before.",
)
DIVIDED_BY_ZERO = Diagnosis(
    "divided-by-zero",
    "What was to be counted is not there: a list that nothing was put into, or a loop that never ran.",
    "Print the number that you divide by, and look at the lines that should make it larger.",
)
VANISHED = Diagnosis(
    "vanished",
    "os._exit(), or a crash in a library, ends a process at once. The check could not see what the program "
    "did.",
    "Remove os._exit() if it is there. Otherwise run the file with python, and see how far it gets.",
)
TIME = Diagnosis(
    "time",
    "Either a loop never ends, or the work needs more time than the limit.",
    "Look at the loop around this line: what ends it? If it only needs more time, allow it: --time-limit "
    "300.",
)
IDLE = Diagnosis(
    "idle",
    "The program waited for something that did not come: an answer, a lock or another process.",
    "Look at what this line waits for. If the wait is intended, allow more: --time-limit 300.",
)
MEMORY = Diagnosis(
    "memory",
    "Something grows without end, or is far larger than it looks.",
    "Look for a list that only grows, and print the shapes of the tensors made here.",
)
ASKS_FOR_INPUT = Diagnosis(
    "asks-for-input",
    "While a program is checked, nobody can type an answer.",
    'Replace input() by a value in the program, such as name = "Ada".',
)
FILE_ENDS = Diagnosis(
    "file-ends",
    "What was read is empty, or only a part of what was saved.",
    "Look at the line that writes the file: does it run before this one, and write to the same path?",
)
NOT_TEXT = Diagnosis(
    "not-text",
    "Python reads a program as text in UTF-8.",
    "Save the file as UTF-8: most editors offer that under “save as” or in the status bar.",
)
NO_TORCH = Diagnosis(
    "no-torch",
    "Without PyTorch there is nothing to check.",
    "Install it as the page “Set up” shows. Then python -m gpulesson tells whether it works.",
)
NO_PRACTICE_GPU = Diagnosis(
    "no-practice-gpu",
    "This version of PyTorch may lack what the practice GPU needs. Or there is a real GPU, and it is "
    "full or in use.",
    "If the message is about PyTorch: pip install --upgrade torch. If it is about the GPU, try again when "
    "it is free.",
)
SLOW_START = Diagnosis(
    "slow-start",
    "None of your program has run yet. The machine may be busy.",
    'Try again. If it happens again, see how long this takes: python -c "import torch".',
)

_DEVICES = re.compile(
    r"same device|same type|should be the same|type torch\.cuda|device type for|on device|is on cpu"
)
_OF_PYTHON = {
    "FileNotFoundError": (NO_SUCH_FILE, "This line reads a file that is not there."),
    "ZeroDivisionError": (DIVIDED_BY_ZERO, "This line divides by 0."),
}


def raised(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the exception that ended the program was about."""
    seen = trace.error
    if seen is None:
        return
    if seen.type in ("SyntaxError", "IndentationError", "TabError") and len(seen.lines) == 1:
        yield source.failure(SYNTAX_ERROR, seen.site, f"Python says: {source.renumbered(seen.message)}.")
    elif "can't convert cuda" in seen.message and "numpy" in seen.message:
        yield _numpy(seen, source)
    elif seen.type == "EOFError" and "reading a line" in seen.message:
        yield source.failure(ASKS_FOR_INPUT, seen.site, "The program asked for input, and got none.")
    elif seen.type == "EOFError" or "failed finding central directory" in seen.message:
        what = "This line reads a file that ends too early, or is empty."
        yield source.failure(FILE_ENDS, seen.site, what)
    elif seen.type == "MemoryError" or "can't allocate memory" in seen.message:
        yield source.failure(MEMORY, seen.site, "The program asked for more memory than the check allows.")
    elif trace.argmaxes:
        return  # the shapes that do not fit come from there
    elif seen.type == "RuntimeError" and _DEVICES.search(seen.message):
        yield devices.mixed(trace, seen, source)
    elif seen.type == "KeyError":
        yield _missing(seen, source)
    elif seen.type in _OF_PYTHON:
        diagnosis, what = _OF_PYTHON[seen.type]
        message = errors.first_line(seen.message)
        yield source.failure(diagnosis, seen.site, f"{what} Python says: {seen.type}: {message}")
    elif (finding := errors.known(seen, source)) is not None:
        twice = source_text.keys_twice(source.lines) if finding.kind == "state-does-not-fit" else {}
        for name, line in twice.items():
            what = f"“{name}” is here for the second time. {finding.what}"
            yield source.failure(KEY_TWICE, line, what)
            return
        yield finding
    else:
        yield source.failure(ERROR, seen.site, f"{seen.type}: {errors.first_line(seen.message)}")


def _numpy(seen: ErrorSeen, source: Source) -> Finding:
    """Say which line makes an array of a tensor on the GPU; or which copy on the CPU nothing has kept."""
    names = {name for site in seen.lines for name in _names(source, site.line)}
    line, call = source_text.thrown_away(source.lines, names, ("to", "cpu"))
    if 0 < line < seen.site.line:
        where = source.where(seen.site.line)
        what = f"{call} returns a copy, and nothing keeps it: on {where} the tensor is still on the GPU."
        return source.failure(COPY_THROWN_AWAY, line, what)
    return source.failure(
        NUMPY_ON_DEVICE, seen.site, "This line makes a NumPy array from a tensor on the GPU."
    )


def _names(source: Source, line: int) -> set[str]:
    """Return the names that a line reads, and those that the last lines before it made them of."""
    made = slices.back(source.lines, line)[:12]
    return {name for each in made for name in slices.bound(each) | slices.read(each)}


def _missing(seen: ErrorSeen, source: Source) -> Finding:
    """Say which dictionary has no such entry, where that is clear: where it is made, or where it is asked."""
    message = errors.first_line(seen.message)
    key = message.strip("'\"")
    says = f"Python says: KeyError: {message}"
    asked = source_text.asked_for(source.lines, seen.site.line, key)
    if asked is None:
        what = f"This line asks a dictionary for a name that is not in it. {says}"
        return source.failure(NO_SUCH_KEY, seen.site, what)
    where = source.where(seen.site.line)
    loaded = source_text.loads(source.lines, asked.name)
    for twice, line in source_text.keys_twice(source.lines, "" if loaded else asked.name).items():
        what = f"“{twice}” is here for the second time, and {asked.name} has no “{key}”. {says}"
        remedy = f"Name one of the two entries “{key}”, if it is meant for that."
        return source.failure(KEY_TWICE._replace(remedy=remedy), line, what)
    if asked.made and not asked.written:
        what = f"{asked.name}, made here, has no entry “{key}”, and {where} asks for it. {says}"
        remedy = f"Add the entry “{key}”, or see why {where} asks for it."
        return source.failure(NO_SUCH_KEY._replace(remedy=remedy), asked.made, what)
    what = f"This line asks {asked.name} for “{key}”, which is not in it. {says}"
    remedy = f"Print the names that are there, print({asked.name}.keys()), and use one of them, or "
    remedy += "save the entry, too." if loaded else "put the entry in before."
    return source.failure(NO_SUCH_KEY._replace(remedy=remedy), seen.site, what)


def exited(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that the program ended itself with a status other than 0."""
    if trace.status == "exit" and trace.exit_code:
        what = f"The program ended itself with status {trace.exit_code}; expected 0."
        yield source.failure(EXITED, trace.exit_at, what)
