"""Rules for a function that the check has called itself: it was not there, or it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import definitions, errors
from gpulesson.exercises.trace import ErrorSeen, Site, Trace

NO_FUNCTION = Diagnosis(
    "no-function",
    "The check calls it by this name, with its own inputs. It does not look at what the file prints.",
    "Use the starter's name, and change only what is inside.",
)
NOT_YOURS = Diagnosis(
    "not-yours",
    "The check calls what is written in this file.",
    "Write the function here. To compare it with the solution, open both side by side.",
)
OTHER_ARGUMENTS = Diagnosis(
    "other-arguments",
    "The check calls the function as the starter does.",
    "Use the starter's arguments, in the same order. An argument of your own needs a default value.",
)
FAILS_WHEN_CALLED = Diagnosis(
    "fails-when-called",
    "The check calls the function with its own inputs: other numbers, other sizes.",
    "Read the message first: it says what went wrong on this line. If your own calls work, look for a "
    "size or a name from outside the function.",
)


def calls(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say why the learner's function could not be called, or where it failed."""
    facts = trace.facts
    if "missing" in facts:
        name, found = facts["missing"]
        what = f"There is no {name} in the file."
        if found:
            what = f"{name} has the type {found}; expected a function."
        yield source.failure(NO_FUNCTION, definitions.line(source.lines, name) if found else 0, what)
    elif "elsewhere" in facts:
        name, file = facts["elsewhere"]
        what = f"{name} was not written in this file, but in {file}."
        line = definitions.line(source.lines, name)
        line = line or definitions.first_match(source.lines, rf"\b{re.escape(file.removesuffix('.py'))}\b")
        yield source.failure(NOT_YOURS, line, what)
    elif "unfit" in facts:
        name, text, message = facts["unfit"]
        what = f"It is defined as {text}. Called as in the starter, it fails: {message}."
        yield source.failure(OTHER_ARGUMENTS, definitions.line(source.lines, name), what)
    elif "fell" in facts:
        doing, message, file, line = facts["fell"]
        kind, _, text = message.partition(": ")
        cause = errors.known(ErrorSeen(kind, text, Site(file, line), [], {}), source)
        what = f"The check called {doing}, and got an error: {message}"
        yield cause or source.failure(FAILS_WHEN_CALLED, Site(file, line), what)


def failed(trace: Trace) -> bool:
    """Tell whether `calls` has something to say: then there is nothing else to look at."""
    return any(name in trace.facts for name in ("missing", "elsewhere", "unfit", "fell"))
