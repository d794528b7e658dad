"""Rules for a function that the check has called itself: it was not there, or it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import definitions, errors
from gpulesson.exercises.trace import ErrorSeen, Site, Trace

NO_FUNCTION = Diagnosis(
    "no-function",
    "The check calls it by this name, with inputs of its own. What the file prints is not looked at.",
    "Keep the name as it is in the starter, and change what it does.",
)
NOT_YOURS = Diagnosis(
    "not-yours",
    "The check reads and calls what you have written in this file.",
    "Write the function here. To compare it with the solution, open both side by side.",
)
OTHER_ARGUMENTS = Diagnosis(
    "other-arguments",
    "The check calls the function just as the starter does.",
    "Keep the arguments as they are in the starter. Arguments of your own need a default.",
)
FAILS_WHEN_CALLED = Diagnosis(
    "fails-when-called",
    "The check calls the function with inputs of its own: other numbers, other sizes.",
    "Use what the function is given, and nothing from outside. Then call it yourself with other inputs.",
)


def calls(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say why the learner's function could not be called, or where it failed."""
    facts = trace.facts
    if "missing" in facts:
        name, found = facts["missing"]
        what = f"There is no {name} in the file."
        if found:
            what = f"{name} is a value of the type {found}, and cannot be called."
        yield source.failure(NO_FUNCTION, definitions.line(source.lines, name) if found else 0, what)
    elif "elsewhere" in facts:
        name, file = facts["elsewhere"]
        what = f"{name} was not written in this file, but in {file}."
        line = definitions.line(source.lines, name)
        line = line or definitions.first_match(source.lines, rf"\b{re.escape(file.removesuffix('.py'))}\b")
        yield source.failure(NOT_YOURS, line, what)
    elif "unfit" in facts:
        name, text, message = facts["unfit"]
        what = f"It is defined as {text}, and cannot be called like the starter's: {message}."
        yield source.failure(OTHER_ARGUMENTS, definitions.line(source.lines, name), what)
    elif "fell" in facts:
        doing, message, file, line = facts["fell"]
        kind, _, text = message.partition(": ")
        cause = errors.known(ErrorSeen(kind, text, Site(file, line), [], {}), source)
        what = f"The check called {doing}: {message}"
        yield cause or source.failure(FAILS_WHEN_CALLED, Site(file, line), what)


def failed(trace: Trace) -> bool:
    """Tell whether `calls` has something to say: then there is nothing else to look at."""
    return any(name in trace.facts for name in ("missing", "elsewhere", "unfit", "fell"))
