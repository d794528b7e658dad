"""The search: an index of sections, which ``search.js`` reads instead of Sphinx's index of pages.

Sections are ranked by BM25: a word counts more if few sections have it, if it is in the title, in an
``.. index::`` or in ``search_words.toml``, and if the section is short. The weights are computed here, and
added up in the browser. A term of the glossary and a documented name are sections, too. Code counts little,
the output of a lesson not at all.
"""

from __future__ import annotations

import functools
import json
import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import tomllib
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors import EnvironmentCollector
from sphinx.search import IndexBuilder
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

logger = logging.getLogger(__name__)

WORD = re.compile(r"[^\W_]+(?:_+[^\W_]+)*")
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")  # of a name: DataLoader, pin_memory
# the weight of a word by its place: names are what people call a section, above are the titles around it
WEIGHTS = {"title": 14.0, "names": 4.0, "above": 4.0, "text": 1.0, "code": 0.3}
SATURATION, LENGTH = 1.2, 0.75  # BM25's k1 and b
STEPS = 26  # levels of a weight, each a letter
# pages by the beginnings of their names: teaching comes before reference, and before pages about the course
SHARES = {
    "lessons/": 1.0,
    "errors": 0.4,
    "glossary": 0.25,
    "reference": 0.4,
    **dict.fromkeys(("coverage", "handbook", "licences", "measured", "promises", "results", "tried"), 0.4),
    "instructors": 0.4,
}
TASK = 0.5  # an exercise, whose subject its lesson explains
EXCERPT = 120  # characters
APART = nodes.section, nodes.title, nodes.Invisible, nodes.raw, nodes.image, addnodes.desc, addnodes.glossary
UNREAD = {"no-search", "sphx-glr-script-out", "recorded", "same", "machine", "measured", "covers"}
# words of a question beside its subject; and words that matter, though Sphinx's list of stop words has them
FILLERS = """
best can get go good help know like make many mean much need please say still thing try use
used using want way work
"""
MEANINGFUL = {"cannot", "no", "not"}
# groups of synonyms: people and pages may use different ones
ALIKE = """
no not without cannot never; two 2 multiple several both; computer machine laptop pc; big large huge;
small little tiny; continue resume; fast faster fastest speed quick slow slower slowest; memory vram ram oom;
install setup set; load read open; save write store; free release empty clear; gpu gpus graphics card;
fake simulate simulated mock emulate practice practise; apple mac macbook mps m1; amd rocm radeon;
choose pick select; picture image photo; bug mistake wrong problem; predict prediction answer;
stop end kill killed; cluster slurm hpc; error message exception crash fail;
utilisation utilization busy usage; loader dataloader; distributed ddp;
half float16 fp16 amp mixed bf16 bfloat16; copy transfer move; convert port migrate adapt
"""


@dataclass
class Part:
    """One result: a section without its subsections, a term, or a documented name."""

    anchor: str
    title: str
    above: str
    names: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def parts(document: nodes.document) -> Iterator[Part]:
    """Divide a page into parts."""
    for section in document.findall(nodes.section):
        above = [one[0].astext() for one in ancestors(section)]
        anchor = section["ids"][0] if above else ""
        yield read(section, Part(anchor, section[0].astext(), " ".join(above)))
    for item in document.findall(nodes.definition_list_item):
        terms = [term for term in item.findall(nodes.term) if any(i.startswith("term-") for i in term["ids"])]
        if terms:
            names = [term.astext() for term in terms]
            yield read(item[-1], Part(terms[0]["ids"][0], names[0], "Glossary", names[1:]))
    for described in document.findall(addnodes.desc):
        signature = described.next_node(addnodes.desc_signature)
        if signature and signature["ids"]:
            name = signature["ids"][0]
            yield read(described[-1], Part(name, name.removeprefix("envvar-"), ""))


def ancestors(node: nodes.Node) -> Iterator[nodes.section]:
    above = node.parent
    while above:
        if isinstance(above, nodes.section):
            yield above
        above = above.parent


def read(node: nodes.Node, part: Part) -> Part:
    """Put the words below a node into a part."""
    for child in node.children:
        if isinstance(child, addnodes.index):
            part.names += [entry[1] for entry in child["entries"]]
        elif isinstance(child, nodes.Text):
            part.text.append(child.astext())
        elif isinstance(child, nodes.Element) and not is_apart(child):
            if isinstance(child, nodes.literal_block):
                part.code.append(child.astext())
            else:
                read(child, part)
            if not isinstance(child, nodes.Inline):
                part.text.append(" ")
    return part


def is_apart(node: nodes.Element) -> bool:
    """Return whether a node is not text of its section, such as a subsection or an unresolved title."""
    unknown = isinstance(node, addnodes.pending_xref) and node["reftype"] in ("doc", "ref")
    return (
        (unknown and not node.get("refexplicit"))
        or isinstance(node, APART)
        or bool(UNREAD & {*node.get("classes", ())})
    )


class Sections(EnvironmentCollector):
    """Keeps the parts of each page between builds."""

    def clear_doc(self, app: Sphinx, env: BuildEnvironment, docname: str) -> None:
        kept(env).pop(docname, None)

    def merge_other(
        self, app: Sphinx, env: BuildEnvironment, docnames: Set[str], other: BuildEnvironment
    ) -> None:
        kept(env).update({name: kept(other)[name] for name in docnames if name in kept(other)})

    def process_doc(self, app: Sphinx, doctree: nodes.document) -> None:
        if "nosearch" not in app.env.metadata[app.env.docname]:
            kept(app.env)[app.env.docname] = list(parts(doctree))


def kept(env: Any) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = vars(env).setdefault("gpulesson_sections", {})
    return found


def words(text: str) -> list[str]:
    """Return the words of a text, and the parts of names.

    Examples
    --------
    >>> words("DataLoader(pin_memory=True) can't")
    ['dataloader', 'data', 'loader', 'pin_memory', 'pin', 'memory', 'true', 'ca', 'not']
    """
    found = []
    for word in WORD.findall(re.sub("n['’]t\\b", " not", text)):
        pieces = PARTS.findall(word)
        found += [word.lower(), *(piece.lower() for piece in pieces if len(pieces) > 1)]
    return found


def add_names(env: BuildEnvironment) -> dict[str, list[Part]]:
    """Return the parts of each page, with their names from search_words.toml."""
    path = Path(env.srcdir, "search_words.toml")
    asked = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    found = {}
    for page, held in sorted(kept(env).items()):
        names = dict(asked.get(page, {}))
        more = [names.pop(straight(part.title), "").split(";") for part in held]
        found[page] = [
            replace(part, names=[*part.names, *(name.strip() for name in some if name)])
            for part, some in zip(held, more, strict=True)
        ]
        for title in names:
            logger.warning("search_words.toml: %s has no section %r", page, title)
    return found


def straight(title: str) -> str:
    return title.replace("’", "'")


def weigh(env: BuildEnvironment, stem: Callable[[str], str], ignored: set[str]) -> dict[str, object]:
    """Return the pages, the sections, and the weights of each word in the sections that have it."""
    groups = [[stem(word) for word in group.split()] for group in ALIKE.split(";")]
    meanings = {word: group[0] for group in reversed(groups) for word in group}

    def said(text: str) -> list[str]:
        return [stem(word) for word in words(text) if word not in ignored]

    found, named = [], add_names(env)
    for page, held in named.items():
        for part in held:
            texts = {
                "title": part.title,
                "names": " ".join(part.names),
                "above": part.above,
                "text": "".join(part.text),
                "code": " ".join(part.code),
            }
            counts: defaultdict[str, float] = defaultdict(float)
            for name, text in texts.items():
                for word in said(text):
                    counts[word] += WEIGHTS[name]
            found.append((page, part, counts, len(texts["text"]) + len(texts["code"]) + 100))
    mean = sum(length for *_, length in found) / len(found)
    times = Counter(word for _, _, counts, _ in found for word in counts)
    weights: dict[str, dict[int, float]] = defaultdict(dict)
    for number, (page, part, counts, length) in enumerate(found):
        share = next((share for start, share in SHARES.items() if page.startswith(start)), 0.9)
        share *= TASK if part.title == "Exercise" else 1
        for word, count in counts.items():
            rare = math.log(1 + (len(found) - times[word] + 0.5) / (times[word] + 0.5))
            much = count * (SATURATION + 1) / (count + SATURATION * (1 - LENGTH + LENGTH * length / mean))
            weights[word][number] = share * rare * much
    most = max(max(some.values()) for some in weights.values())
    pages = {page: number for number, page in enumerate(named)}
    return {
        "pages": [[page, kept(env)[page][0].title] for page in pages],
        "sections": [
            [
                pages[page],
                part.anchor,
                part.title,
                shorten("".join(part.text), EXCERPT, placeholder=" …"),
                *(
                    " ".join(dict.fromkeys(meanings.get(word, word) for word in said(name)))
                    for name in (part.title, *part.names)
                ),
            ]
            for page, part, *_ in found
        ],
        "words": {word: packed(some, most) for word, some in sorted(weights.items())},
        "alike": groups,
        "ignored": sorted(ignored),
        "fillers": [stem(word) for word in FILLERS.split()],
    }


def packed(weights: dict[int, float], most: float) -> str:
    """Write weights as text: the distance to the section before in base 36, a letter for the root.

    Examples
    --------
    >>> packed({3: 9.0, 40: 1.0}, 9.0)
    '3Z11I'
    """
    written, last = [], 0
    for number, weight in weights.items():
        step = max(1, round(STEPS * math.sqrt(weight / most)))
        written.append(f"{base36(number - last)}{string.ascii_uppercase[step - 1]}")
        last = number
    return "".join(written)


def base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = (string.digits + string.ascii_lowercase)[digit] + digits
    return digits


def write(app: Sphinx, env: BuildEnvironment) -> None:
    """Write the index, and the stemmer of its words, beside the scripts."""
    language = IndexBuilder(env, app.config.language, {}, "")
    ignored = {*language.lang.stopwords} - MEANINGFUL
    found = weigh(env, functools.cache(language.lang.stem), ignored)
    folder = Path(app.outdir, "_static")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (folder / "sections.js").write_text(f"const SECTIONS = {text};\n", "utf-8")
    (folder / "stemmer.js").write_text(language.get_js_stemmer_code(), "utf-8")


def replace_sphinxs(app: Sphinx) -> None:
    """Leave out Sphinx's index and its script, but keep the page."""
    builder: Any = app.builder
    builder.search = False
    app.config.html_additional_pages = {**app.config.html_additional_pages, "search": "search.html"}


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_env_collector(Sections)
    app.connect("builder-inited", replace_sphinxs)
    app.connect("env-updated", write)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
