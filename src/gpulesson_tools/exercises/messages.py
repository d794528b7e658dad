"""What an error means: the section of the page "Error messages", or a sentence on one of Python's own."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from gpulesson_tools.exercises.catalogue import shipped


class Explanation(NamedTuple):
    """A message, and its usual cause."""

    message: str
    cause: str


_VARIES = {
    r'"\d[^"]*"(?:, "[^"]*")*': r'"[^"]+"(?:, "[^"]+")*',  # names of parameters
    r"\b\d+\.[a-z]\w*": r"[\w.]+",
    r"\d+x\d+": r"\d+x\d+",
    r"(?<=for )Sequential|Log(?=Backward)": r"\w+",
    r"cuda:\d+ and cpu": r"(?:cuda:\d+ and cpu|cpu and cuda:\d+)",
    r"\[[\d, ]+\]": r"\[[\d, ]*\]",
    r"(?<=sm_)\d+|(?<![\w.])\d+(?:\.\d+)?": r"\d+(?:\.\d+)?(?:, \d+)*",
    r"[KMG]iB": r"(?:[KMGT]iB|bytes)",
}
"""What a heading has of its example, and what other messages have there."""

_BRACKETS = "Are its brackets () missing, or does it have [] in their place?"
PYTHON = {
    r"\w+: [^\n]*(?:'|not |got )(?:builtin_function_or_method|method|function)(?:'|\n)": f"""A function itself
        stands there, and not its answer. {_BRACKETS}""",
    r"AttributeError: __enter__|TypeError: '\w+' object does not support the context": """What stands after
        `with` cannot be opened. Are its brackets () missing, as in torch.no_grad()?""",
    r"TypeError: [^\n]* missing \d+ required positional argument[^\n]*'self'": f"""That is the class itself,
        and not an object that was made of it. {_BRACKETS}""",
    r"EOFError: EOF when reading a line": """input() waits for the keyboard, and a check has none. Write the
        value into the program, or ask below `if __name__ == "__main__":`, which the check leaves out.""",
    r"SystemExit": """The program ends itself in this line, by exit(), quit() or sys.exit(). Remove that, or
        move it below `if __name__ == "__main__":`, which the check leaves out.""",
    r"NameError: name '(\w+)' is not defined": """No line that ran before has given {0} a value. Is it
        misspelt, or is its import missing?""",
    r"UnboundLocalError": """The function gives this name a value, so the name is the function's alone; but no
        such line ran before this one. Give it a value at the function's beginning.""",
    r"ModuleNotFoundError: No module named '(\w+)": """Neither is {0} installed, nor is {0}.py beside this
        file. Install it, copy it there, or remove the import.""",
    r"FileNotFoundError: \[Errno 2\] [^\n']*'([^'/\\\n]+)'": """A check runs a file in an empty folder. What
        lies beside the file is found in every folder by Path(__file__).parent / '{0}'.""",
    r"MemoryError": "It asks for more memory than a check has.",
    r"RecursionError": "The function calls itself again and again, and no condition ends that.",
    r"SyntaxError: invalid (?:syntax|decimal literal)\n(?:%|!)": """Lines that begin with % or ! belong into a
        notebook. Remove them from a Python file.""",
    r"SyntaxError: [^\n]*\n>>>": "The >>> is the prompt of Python's console. Remove it from each line.",
    r"SyntaxError: [^\n]*\n```": "The ``` mark code in a chat or a text. Remove these lines.",
    r"SyntaxError: [^\n]*\n<<<<<<<": "Git could not merge two versions. Keep one, and remove Git's marks.",
    r"SyntaxError: [^\n]*\n\{\\rtf": "The file was saved as rich text. Save it as plain text.",
    r"SyntaxError: [^\n]*\n<!DOCTYPE|SyntaxError: [^\n]*\n<html": """This is a web page, and not the program
        that it shows. Download the program itself.""",
    r"SyntaxError: invalid (?:non-printable )?character": """It was copied from a page or a text. Type it
        again: a plain space, or plain quotation marks.""",
    r"SyntaxError: source code (?:string )?cannot contain null bytes": """The file is not plain text in UTF-8.
        Save it as that in your editor.""",
    r"SyntaxError: invalid syntax\n": """Python cannot read on at the mark. Look there, and at the end of the
        line before: a bracket, a quotation mark or a colon may be missing.""",
    r"TabError": """One line begins with tabs, another with spaces. Let your editor turn all tabs into four
        spaces each.""",
    r"IndentationError: unindent": """It begins between two blocks. Let it begin exactly below a line of the
        block that it belongs to.""",
    r"IndentationError: unexpected indent": """It begins further to the right than the line before, which
        opens no block. Let both begin alike.""",
    r"IndentationError: expected an indented block": """What belongs to the line above has to begin four
        spaces further to the right. If there is nothing yet, write pass.""",
}
"""Python's own errors with a cause that is certain from the message, and the line after it: its words."""


@cache
def explanations() -> dict[Explanation, re.Pattern[str]]:
    """Read the sections of the page, with what a message of each looks like.

    That is its heading, whatever the example's numbers are. Where the text says "``Byte`` instead of
    ``Double``", a message may have either.
    """
    page = shipped("errors.rst", "docs/errors.rst").read_text(encoding="utf-8")
    parts = re.split(r"^``(.+)``\n~+\n", page, flags=re.MULTILINE)
    found = {}
    for message, text in zip(parts[1::2], parts[2::2], strict=True):
        forms = [message]
        places = r"``([^`]+)``\s+instead\s+of\s+``([^`]+)``"
        for other, usual in re.findall(places, text):
            forms.append(message.replace(" ".join(usual.split()), " ".join(other.split())))
        pattern = "|".join(map(_template, forms))
        found[Explanation(message, _prose(text))] = re.compile(rf"(?:^|[.:\]] )(?:{pattern})(?!\w)")
    return found


def _template(heading: str) -> str:
    """Return a pattern of the messages that have another example's numbers and names."""
    pattern, end, varies = "", 0, "|".join(f"({each})" for each in _VARIES)
    for each in re.finditer(varies, heading):
        pattern += re.escape(heading[end : each.start()]) + [*_VARIES.values()][(each.lastindex or 1) - 1]
        end = each.end()
    return pattern + re.escape(heading[end:].rstrip("."))


def explain(error: str) -> Explanation | None:
    """Find the explanation of an error, given its type and the first line of its message, as a whole.

    Examples
    --------
    >>> explain("IndexError: Target 12 is out of bounds.").message
    'Target 3 is out of bounds.'
    >>> explain("IndexError: list index out of range") is None
    True
    """
    return next((each for each, pattern in explanations().items() if pattern.search(error)), None)


def of_python(error: str, line: str = "") -> str:
    """Return what to do about one of Python's own errors, or nothing; `line` is that of the program.

    Examples
    --------
    >>> of_python("RecursionError: maximum recursion depth exceeded")
    'The function calls itself again and again, and no condition ends that.'
    """
    for pattern, cause in PYTHON.items():
        if found := re.match(pattern, f"{error}\n{line}"):
            words = " ".join(cause.split())
            return words.format(*found.groups()) if found.groups() else words
    return ""


def _prose(text: str) -> str:
    """Return the first paragraph without its markup."""
    paragraph = next(p for p in text.strip().split("\n\n") if not p.startswith((".. ", "   ")))
    paragraph = re.sub(r":\w+:`([^`<]+?)(?: <[^>]+>)?`", r"\1", paragraph)
    return re.sub(r"`+|\*\*", "", paragraph).replace("\n", " ")
