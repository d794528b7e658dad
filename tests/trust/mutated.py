"""Makes files whose digest is right and whose content is not: one value, key or container is another.

Each place in the JSON of a genuine file, in its header, and in its tensors is changed in turn: numbers to
those of other types and beyond each range, containers to others, keys to foreign ones and to doubled ones.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from forged import DIGEST, json_of, put_together, take_apart, with_json

Change = tuple[str, Callable[[], bytes]]
"""What is changed, and what makes the file."""

PRIME = 2**61 - 1  # Python's hash of a number is its remainder
MANY = 50_000
_RAW = "@raw@"


class Raw(bytes):
    """JSON that `json.dumps` would not write."""


def mutations(genuine: bytes, chance: random.Random) -> Iterator[Change]:
    """Yield the changes of a safetensors file, those of different places by turns."""
    header, body = take_apart(genuine)
    header["__metadata__"].pop(DIGEST, None)
    name = min(header.keys() - {"__metadata__", "checkpoint.json"}, default="checkpoint.json")

    def with_header(raw: bytes) -> bytes:
        """Put the digest where the package expects it."""
        put = f'{{"__metadata__":{{"{DIGEST}":"{"0" * 64}",'.encode()
        text = raw.replace(b'{"__metadata__":{', put, 1)
        return put_together(text.replace(b'",}', b'"}', 1), body)

    areas = [changed_trees("header", header, name, with_header, chance), changed_bytes(genuine, chance)]
    if "checkpoint.json" in header:
        tree = json.loads(json_of(genuine))
        areas += 3 * [changed_trees("JSON", tree, name, lambda raw: with_json(genuine, raw), chance)]
    return by_turns(areas)


def by_turns(areas: list[Iterator[Change]]) -> Iterator[Change]:
    while areas:
        for area in list(areas):
            try:
                yield next(area)
            except StopIteration:
                areas = [each for each in areas if each is not area]


# -- JSON


def changed_trees(
    where: str, tree: Any, tensor: str, make: Callable[[bytes], bytes], chance: random.Random
) -> Iterator[Change]:
    """Change each place of a nest of JSON once, in any order, then each once more, until all was done."""
    left = []
    for way, value in places(tree):
        changes = list(changes_of(value, tensor))
        chance.shuffle(changes)
        left.append((way, changes))
    while left:
        chance.shuffle(left)
        for way, changes in left:
            what, new = changes.pop()
            text = f"{where} {'/'.join(map(str, way))}: {what}"
            yield text, lambda way=way, new=new: make(as_json(put(tree, way, new)))
        left = [(way, changes) for way, changes in left if changes]


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each value of a nest, and the way that leads to it; of long lists, the ends."""
    yield way, value
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*way, name))
    elif isinstance(value, list):
        for number in {*range(min(3, len(value))), *range(max(0, len(value) - 1), len(value))}:
            yield from places(value[number], (*way, number))


def put(tree: Any, way: tuple[Any, ...], new: Any) -> Any:
    if not way:
        return new
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[way[0]] = put(tree[way[0]], way[1:], new)
    return copied


def as_json(tree: Any) -> bytes:
    """Write JSON; `Raw` stands as it is."""
    raw: list[bytes] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(value)
            return f"{_RAW}{len(raw) - 1}"
        if isinstance(value, dict):
            return {name: marked(each) for name, each in value.items()}
        return list(map(marked, value)) if isinstance(value, list) else value

    text = json.dumps(marked(tree), separators=(",", ":")).encode()
    for number, each in enumerate(raw):
        text = text.replace(f'"{_RAW}{number}"'.encode(), each)
    return text


def changes_of(value: Any, tensor: str) -> Iterator[tuple[str, Any]]:
    """Yield what may stand in the place of a value."""
    if isinstance(value, dict | list):
        yield from changes_of_container(value)
    else:
        yield from (("of " + repr(value)[:20] + " to " + repr(new)[:40], new) for new in near(value))
    for what, new in FOREIGN.items():
        yield f"of {type(value).__name__} to {what}", new
    yield "to a tensor", {"$tensor": tensor}
    yield "to a tensor as complex", {"$tensor": tensor, "dtype": "torch.complex64"}


def near(value: Any) -> Iterator[Any]:
    """Yield values of the other types that come near this one, and beyond its range."""
    if isinstance(value, bool):
        yield from (int(value), float(value), str(value), not value)
    elif isinstance(value, int | float):
        yield from (
            -value,
            value + 1,
            value - 1,
            value * 10**6,
            [value],
            str(value),
            bool(value),
            {"a": value},
        )
        yield from (float(value), int(value), value + 0.5)
        yield from ({"$float": str(value)}, {"$tuple": [value]}, {"$complex": [float(value), 0.0]})
    elif isinstance(value, str):
        yield from (value + "x", value[:-1], value.upper(), [value], "torch." + value, {"$bytes": value})


def changes_of_container(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        pairs = bool(value) and all(isinstance(each, list) and len(each) == 2 for each in value)
        yield "reversed", value[::-1]
        if value:
            yield "without the last", value[:-1]
            yield "the last twice", [*value, value[-1]]
            yield "the first a thousand times", [value[0]] * 1000
        if pairs:
            yield "with a pair of three", [*value, [1, 2, 3]]
            yield "with a foreign key", [*value, [10**6, 1]]
            yield "with a key that is a list", [*value, [[1], 1]]
        return
    for name in value:
        rest = {other: each for other, each in value.items() if other != name}
        yield f"without {name}", rest
        for other in (f"{name}_", f"${name}", f"_{name}", name.upper(), "\x1b[2J\u202e", "", "step", "0"):
            yield f"{name} renamed {other!a}", rest | {other: value[name]}
        twice = as_json(value)[:-1] + b"," + as_json({name: value[name]})[1:]
        yield f"{name} twice", Raw(twice)
    yield "with one more", value | {"more": 1}
    yield "with one more mark", value | {"$tuple": [1]}
    yield "with ten thousand more", value | {f"e{number}": 0 for number in range(10_000)}
    yield "as pairs", {"$dict": [[name, each] for name, each in value.items()]}
    yield "as pairs by number", {"$dict": [[number, each] for number, each in enumerate(value.values())]}
    yield "as an OrderedDict", {"$OrderedDict": value}
    yield "as a list", list(value.values())


def colliding(form: str) -> Raw:
    """Keys of one hash, or, as numbers below 2**60, of one chain of places in a dict."""
    if form == "chain":  # after 12 steps, nothing of such a number is left that could tell it from the others
        keys = [number << 20 | 1 for number in range(MANY)]
    else:
        keys = [number * PRIME for number in range(1, MANY)]
    written = {"tuple": '{"$tuple":[%d]}', "complex": '{"$complex":[%d.0,0.0]}'}.get(form, "%d")
    if form == "float":
        written, keys = "%r", [math.ldexp(1.0, 61 * power) for power in range(16)] * 1000
    texts = ",".join(written % key for key in keys[: 15_000 if form in ("tuple", "complex") else MANY])
    return Raw(b'{"$set":[' + texts.encode() + b"]}")


def deep(begin: bytes, end: bytes, depth: int) -> Raw:
    return Raw(begin * depth + b"0" + end * depth)


MARKED = """
    {"$tuple":[]} {"$tuple":1} {"$set":[1,2]} {"$set":[1,1]} {"$set":[[1]]} {"$Size":[-1]}
    {"$Size":[9223372036854775808]} {"$Size":[1.5]} {"$deque":[1,2],"maxlen":1} {"$deque":[1],"maxlen":-1}
    {"$deque":[1],"maxlen":9223372036854775808} {"$deque":[1]} {"$dict":[[1,2],[1,3]]} {"$dict":[[[1],2]]}
    {"$dict":[1]} {"$Counter":{"a":"b"}} {"$Counter":{"$dict":[[5,1]]}} {"$OrderedDict":{},"_metadata":5}
    {"$OrderedDict":{},"__class__":5} {"$complex":[1.0,2.0]} {"$complex":[1]} {"$complex":["1+2j"]}
    {"$complex":[]} {"$bytes":"AAAA"} {"$bytes":"A"} {"$bytes":5} {"$dtype":"torch.float32"} {"$dtype":"nn"}
    {"$dtype":"float"} {"$dtype":5} {"$device":"cpu"} {"$device":"meta"} {"$device":"cuda:99999999999"}
    {"$device":5} {"$tensor":"missing"} {"$tensor":[1]} {"$none":1}
"""
"""JSON of marked values, right and wrong ones."""

FOREIGN: dict[str, Any] = {
    **{
        repr(value)[:12] + ("…" if len(repr(value)) > 12 else ""): value
        for value in (None, True, False, 0, 1, -1, 0.5, -1.5, 1e6, -1000.0, 1e308, 5e-324, "", "x", [], {})
    },
    **{f"2**{power}": 2**power for power in (31, 32, 53, 61, 63, 64, 128)},
    "10**400": 10**400,
    "-10**400": -(10**400),
    "10**3000": 10**3000,
    **{text: {"$float": text} for text in ("nan", "inf", "-inf", "1", "")},
    **{text[:40]: json.loads(text) for text in MARKED.split()},
    **{f"colliding {form}s": colliding(form) for form in ("int", "tuple", "complex", "float", "chain")},
    "colliding keys": Raw(
        b'{"$dict":[' + ",".join(f"[{number * PRIME},0]" for number in range(1, MANY)).encode() + b"]}"
    ),
    **{f"lists {depth} deep": deep(b"[", b"]", depth) for depth in (101, 900, 100_000)},
    **{f"dicts {depth} deep": deep(b'{"a":', b"}", depth) for depth in (101, 900)},
    **{f"tuples {depth} deep": deep(b'{"$tuple":[', b"]}", depth) for depth in (90, 450, 50_000)},
    "a deep key": Raw(b'{"$dict":[[' + deep(b'{"$tuple":[', b"]}", 400) + b",1]]}"),
    "a name twice": Raw(b'{"a":1,"a":2}'),
    "NaN": Raw(b"NaN"),
    "-0": Raw(b"-0"),
    "1e999": Raw(b"1e999"),
    "half a character": Raw(b'"\\ud800"'),
}


# -- tensors

_FORMATS = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}
_SAME_SIZE = {"F32": "I32", "I64": "F64", "I32": "F32", "U8": "BOOL", "F64": "U64", "BOOL": "U8"}
GENERATOR = 5056
"""Bytes of the state of a generator of PyTorch."""


def changed_bytes(genuine: bytes, chance: random.Random) -> Iterator[Change]:
    """Change single numbers of each tensor, its dtype, or its shape; of generators, their counters."""
    header, body = take_apart(genuine)
    names = [name for name in header if name not in ("__metadata__", "checkpoint.json")]
    while names:
        chance.shuffle(names)
        for name in names:
            entry = header[name]
            begin, end = entry["data_offsets"]
            if begin == end or chance.random() < 0.2:
                what, new = chance.choice(list(other_entries(entry)))
                yield f"{name} {what}", lambda name=name, new=new: put_together(header | {name: new}, body)
                continue
            if end - begin == GENERATOR:
                offset, form, value = chance.choice(list(counters(chance)))
            else:
                form = _FORMATS.get(entry["dtype"], "B")
                size = struct.calcsize(form)
                last = (end - begin) // size - 1
                offset = size * chance.choice([0, last, chance.randint(0, last)])
                numbers = FLOATS if form in "fd" else INTS
                value = chance.choice([each for each in numbers if fits(form, each)])
            packed = struct.pack("<" + form, value)
            at = begin + offset
            yield (
                f"{name} {value} at byte {offset}",
                lambda at=at, packed=packed: put_together(
                    header, body[:at] + packed + body[at + len(packed) :]
                ),
            )


FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 1e30, 5e-324, 2.0**24)
INTS = (0, 1, -1, 2, 255, 624, 625, 10_000, 2**31 - 1, -(2**31), 2**32, 2**62, -(2**63), 2**63 - 1)


def fits(form: str, value: float) -> bool:
    try:
        struct.pack("<" + form, value)
    except (struct.error, OverflowError):
        return False
    return True


def counters(chance: random.Random) -> Iterator[tuple[int, str, float]]:
    """Yield numbers of a generator's state: where, of which kind, and what."""
    for value in (-1, 0, 1, 5, 300, 623, 624, 625, 2**31 - 1, -(2**31)):
        yield 8, "i", value  # how many are left
        yield 12, "i", value  # whether it was seeded
    for value in (0, 1, 300, 623, 624, 625, 10**9, 2**63):
        yield 16, "Q", value  # which is next
        yield 24 + 8 * chance.randrange(624), "Q", value  # one of its numbers
    for place in (5016, 5024, 5032):  # what it drew beforehand
        for value in FLOATS:
            yield place, "d", value
    for value in (-1, 2, 2**31 - 1):
        yield 5040, "i", value
        yield 5048, "i", value


def other_entries(entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    shape = entry["shape"]
    yield "of another dtype", entry | {"dtype": _SAME_SIZE.get(entry["dtype"], "F4")}
    for other in ([1, *shape], [*shape, 1], shape[::-1], [math.prod(shape)], shape[:-1], [0, *shape]):
        if other != shape:
            yield f"of the shape {other}", entry | {"shape": other}
    yield "of bytes", entry | {"dtype": "U8", "shape": [entry["data_offsets"][1] - entry["data_offsets"][0]]}
