"""The command ``python -m gpulesson film``: a page that steps through a script on the practice GPU.

The page is one file that opens anywhere. Its parts are made here, and a small script steps through them;
without it, the page is a table of the same stops.
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulesson_tools.porting import command
from gpulesson_tools.porting.child import WHOLE, Loops
from gpulesson_tools.porting.facts import Run, explained
from gpulesson_tools.programs import arguments
from gpulesson_tools.programs.arguments import Program

if TYPE_CHECKING:
    from gpulesson_tools.porting.filming import Stop, Thing
    from gpulesson_tools.porting.run import Runs

_HERE = Path(__file__).parent
_MOST = 500
"""Stops of a page: more are not stepped through."""
_THINGS = 10
"""Things on a side: of more, the innermost function's are named, and what a line changed."""
_MARK = "<!-- made by gpulesson film -->"
"""By which a film is known: other files are not written over."""
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def main(words: Sequence[str], prog: str) -> int:
    """Film the script of a command line, and write the page into this folder; 1 if there is none."""
    parser = arguments.parser(
        prog,
        "Run a script on the practice GPU, and write a page that shows, line by line, what is copied, sent "
        "to the GPU and waited for, and what is in which memory. What follows the script is passed to it.",
    )
    parser.add_argument("--out", type=Path, help="the page to write (default: SCRIPT.film.html, here)")
    command.add_options(parser)
    options, program = arguments.parse(parser, words)
    status = 1
    with command.refusing(), command.trial(program, options.limit, options.root) as runs:
        out = options.out or Path(f"{Path(runs.name).stem}.film.html")
        command.tell("the script on the practice GPU")
        try:
            if out.exists() and _MARK not in out.read_text(encoding="utf-8", errors="replace"):
                raise command.Refused(f"{out} exists, and is not a film: take another name with --out")
            whole, shown = page(filmed(runs), runs.name, program)
            out.write_text(whole, encoding="utf-8", newline="\n")
        except OSError as error:
            raise command.Refused(
                f"The page cannot be written: {error}. Take another name with --out"
            ) from None
        print(f"{out} shows {_count(shown, 'stop')}. Open it in a browser.")
        status = 0
    return status


def filmed(runs: Runs, *, short: bool = True) -> Run:
    """Run a script on the practice GPU, and return a run whose evidence is its stops and their sources.

    If it is `short`, long loops end early, unless the script fails then.

    Raises
    ------
    command.Refused
        If it did not end, or no line did anything with the GPU.
    """
    run = runs.run({}, gpu=True, loops=Loops(short=short), watch="film")
    if run.failure is not None and short:  # it may need its loops in full
        whole = runs.run({}, gpu=True, loops=WHOLE, watch="film")
        run = run if whole.evidence is None else whole
    name = Path(runs.name).name
    if run.evidence is None:
        raise command.Refused(f"{name} did not come to its end within --limit, or its process ended")
    if not any(stop.acts for stop in run.evidence[0]):
        if run.failure is not None:
            raise command.Refused(f"{name}: {explained(run.failure, 'on the practice GPU')}")
        raise command.Refused(
            f"{name} did not use the GPU, so there is nothing to see. This takes it there: "
            f"python -m gpulesson port {name}"
        )
    return run


# -- words


def sentence(stop: Stop) -> str:
    """Say what a line did, in the order in which a reader wants to know it.

    Examples
    --------
    >>> from gpulesson_tools.porting.filming import Stop
    >>> sentence(Stop("a.py", 1, 1, sent=2, queue=2))
    'Python sends 2 kernels to the GPU and goes on at once.'
    """
    said: list[str] = []
    said += _copied(stop.to_gpu, "to the GPU")
    if stop.sent:
        kernels = _count(stop.sent, "kernel")
        goes_on = " and goes on at once" if stop.queue and not stop.waits else ""
        said.append(f"Python sends {kernels} to the GPU{goes_on}.")
    said += _copied(stop.to_host, "back to the host")
    if stop.waits:
        calls = ", ".join(dict.fromkeys(stop.waits))
        number = len(stop.to_gpu) + len(stop.to_host)
        what = "the copies" if number > 1 else "the copy" if number else "the GPU, which has nothing to do"
        if stop.waited:
            what = f"{_count(stop.waited, 'kernel')} in the queue"
        said.append(f"Python waits for {what} ({calls}).")
    elif said and not stop.sent:
        said.append("Python goes on at once.")
    if stop.clock:
        queue = f", with {_count(stop.queue, 'kernel')} in the queue" if stop.queue else ""
        said.append(f"Python looks at the clock{queue}.")
    said += _states(stop)
    if stop.error:
        said.append(f"The script ends here: {stop.error}")
    elif not said:
        said.append(_without_an_act(stop))
    if stop.more:
        said.append("What comes next was shown before, and is left out.")
    return " ".join(said)


def _copied(copies: Sequence[int], where: str) -> Iterator[str]:
    if copies:
        count = "" if len(copies) == 1 else f", in {len(copies)} copies"
        yield f"{size(sum(copies))} {'goes' if sum(copies) == 1 else 'go'} {where}{count}."


def _states(stop: Stop) -> Iterator[str]:
    """Say what appeared without a name: gradients, an optimizer's state."""
    old = {(each.kind, each.where): each for each in stop.before}
    told: set[int] = set()
    for each in sorted(stop.things, key=lambda each: -len(each.where)):  # a model before its parts
        known = old.get((each.kind, each.where))
        name = each.name.split(", ")[0]
        if each.on_gpu and each.kind == "optimizer" and known is None:
            yield f"The state of {name} is made: {size(each.nbytes)}."
        changed = known is not None and bool(each.gradients) != bool(known.gradients)
        if each.on_gpu and changed and not told.issuperset(each.where):
            told.update(each.where)
            now = f"has gradients now: {size(each.gradients)}" if each.gradients else "has no gradients now"
            yield f"{name} {now}."


def _without_an_act(stop: Stop) -> str:
    """Say what a line did that neither copied, nor sent, nor waited."""
    old, new = ([each for each in side if each.on_gpu] for side in (stop.before, stop.things))
    if made := _only(new, old):
        return f"On the GPU, under a name now: {', '.join(made)}."
    if gone := _only(old, new):
        return f"On the GPU, what was {', '.join(gone)} has no name any more."
    return "This happens on the CPU alone."


def _only(things: list[Thing], others: list[Thing]) -> list[str]:
    """Return the names of things whose memory no other has."""
    known: set[Any] = set().union(*(each.memory for each in others))
    return [each.name for each in things if not each.memory <= known]


def size(nbytes: int) -> str:
    """Write bytes for people: up to 9,999 of them as they are.

    Examples
    --------
    >>> size(1600), size(313_600)
    ('1,600 bytes', '306.2 KiB')
    """
    if nbytes < 10_000:
        return _count(nbytes, "byte")
    unit, factor = next(pair for pair in _UNITS if nbytes >= pair[1])
    return f"{nbytes / factor:,.1f} {unit}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


# -- the page


def page(run: Run, name: str, program: Program) -> tuple[str, int]:
    """Return the whole page of a film, and the number of its stops.

    Parameters
    ----------
    run : Run
        What :func:`filmed` returned.
    name : str
        The script, as the stops name it.
    program : Program
        How it was started.
    """
    every, texts = run.evidence
    stops = every[:_MOST]
    notes = [
        f"python {shlex.join(program.words)}, on the practice GPU: its numbers come from the CPU, its rules "
        "from CUDA."
    ]
    if run.shortened:
        notes.append("Long loops were cut short.")
    if len(every) > _MOST:
        notes.append(f"These are the first {_MOST} of {len(every):,} stops.")
    if run.failure is not None and not stops[-1].error:
        notes.append(explained(run.failure, "on the practice GPU"))
    elif run.stopped:
        notes.append(f"It did not come to its end: {run.stopped}.")
    film = part({"": (stops, texts)})
    content = f"<p>{html.escape(' '.join(notes))}</p>\n{film}"
    return _page(f"{Path(name).name}, line by line", content), len(stops)


def _page(title: str, content: str) -> str:
    style, script = (
        "".join((_HERE / f"{name}.{kind}").read_text(encoding="utf-8") for name in ("play", "play-film"))
        for kind in ("css", "js")
    )
    return (
        f'<!doctype html>\n{_MARK}\n<html lang="en" class="film-page"><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n"
        f"<h1>{html.escape(title)}</h1>\n{content}\n<script>{script}</script>\n</html>\n"
    )


def part(variants: Mapping[str, tuple[Sequence[Stop], dict[str, str]]]) -> str:
    """Return the part of a page that steps through stops: a table, and the data for the script.

    Parameters
    ----------
    variants : mapping of str to tuple
        For the name of each variant of a script, by which one chooses it, its stops and the sources of the
        files that they name. The table is that of the first.

    Examples
    --------
    >>> from gpulesson_tools.porting.filming import Stop
    >>> print(part({"": ([Stop("a.py", 1, 1, sent=2, queue=2)], {"a.py": "y = x + x * x"})})[:40])
    <div class="play film" data-play="film">
    """
    films: list[dict[str, Any]] = []
    for name, (stops, sources) in variants.items():
        texts = {file: sources[file].rstrip() for file in {stop.file for stop in stops}}
        films.append({"name": name, "texts": texts, "stops": list(_shown(stops, several=len(texts) > 1))})
    data = json.dumps(films, ensure_ascii=False, separators=(",", ":"))
    safe = data.replace("<", "\\u003c")
    first, *others = films
    rows = "\n".join(_row(stop, first["texts"]) for stop in first["stops"])
    below = "".join(_otherwise(each, first) for each in others)
    return (
        f'<div class="play film" data-play="film">\n<script type="application/json">{safe}</script>\n'
        '<div class="still"><table>\n<thead><tr><th>Line</th><th>Code</th><th>What happens</th>'
        "<th>Host memory</th><th>GPU memory</th><th>Queue</th></tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody></table>\n{below}</div>\n</div>"
    )


def _otherwise(film: dict[str, Any], first: dict[str, Any]) -> str:
    """Say in which lines another variant differs, and with what it ends."""
    last = film["stops"][-1]
    pairs = zip(*(each["texts"][last["file"]].split("\n") for each in (film, first)), strict=True)
    lines = [
        f"line {number}: <code>{html.escape(new)}</code>"
        for number, (new, old) in enumerate(pairs, 1)
        if new != old
    ]
    end = html.escape(f"At the end, {last['where'].lower()}: {last['says']}")
    return f"<p><b>{html.escape(film['name'])}</b>, {', '.join(lines)}. {end}</p>"


def _shown(stops: Sequence[Stop], *, several: bool) -> Iterator[dict[str, Any]]:
    """Yield the stops as the script and the table show them."""
    for stop in stops:
        line = f"{stop.file}, line {stop.line}" if several else f"Line {stop.line}"
        old = {(each.content, each.written) for each in stop.before}
        sides: dict[bool, list[list[Any]]] = {False: [], True: []}
        counted: set[int] = set()  # a view takes no memory
        for each in stop.things:
            new = (each.content, each.written) not in old
            slopes = f", gradients {size(each.gradients)}" if each.gradients else ""
            nbytes = 0 if counted.issuperset(each.where) else each.nbytes + each.gradients
            counted.update(each.where)
            text = f"{each.shape}, {size(each.nbytes)}{slopes}"
            sides[each.on_gpu].append([each.name, text, int(new), nbytes])
        for on_gpu, held in sides.items():
            if len(held) > _THINGS:
                few = {id(each) for each in sorted(held, key=lambda each: -each[2])[: _THINGS - 1]}
                rest = [each for each in held if id(each) not in few]
                more = [f"{len(rest)} more", "not named here", 0, sum(each[3] for each in rest)]
                sides[on_gpu] = [*(each for each in held if id(each) in few), more]
        if stop.unnamed:
            text = f"without a name, such as what is returned, or kept for backward: {size(stop.unnamed)}"
            sides[True].append(["", text, 0, stop.unnamed])
        used = sum(nbytes for *_, nbytes in sides[True])
        yield {
            "file": stop.file,
            "line": stop.line,
            "last": stop.last,
            "where": line,
            "says": sentence(stop),
            "host": sides[False],
            "gpu": sides[True],
            "used": [used, size(used)],
            "to": size(sum(stop.to_gpu)) if stop.to_gpu else "",
            "back": size(sum(stop.to_host)) if stop.to_host else "",
            "queue": stop.queue,
            "kind": "error" if stop.error else "waits" if stop.waits else "",
        }


def _row(stop: dict[str, Any], texts: dict[str, str]) -> str:
    code = "\n".join(texts[stop["file"]].split("\n")[stop["line"] - 1 : stop["last"]])
    sides = (
        "<br>".join(html.escape(f"{a}: {b}" if a else b) for a, b, *_ in stop[at]) for at in ("host", "gpu")
    )
    cells = [stop["where"], f"<code>{html.escape(code)}</code>", html.escape(stop["says"]), *sides]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in [*cells, str(stop["queue"])]) + "</tr>"


def film_cell(line: str, cell: str) -> None:
    """Film the code of a notebook's cell, which begins with ``%%film`` and the script's arguments."""
    import IPython.display as shell

    show: Any = shell
    program = Program("cell.py", tuple(shlex.split(line)))
    command.tell("the script on the practice GPU")
    try:
        with command.trial(program, text=cell.encode()) as runs:
            whole, _ = page(filmed(runs), runs.name, program)
    except command.Refused as refusal:
        print(refusal)
        return
    frame = f'<iframe srcdoc="{html.escape(whole)}" title="the film" width="100%" height="700"></iframe>'
    show.display(show.HTML(frame))
