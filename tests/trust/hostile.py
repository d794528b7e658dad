"""Makes files that would run code, or exhaust the machine, if they were read without care.

Each has a right digest: who can write such a file can write that, too. The code that they carry makes a
file ``executed`` in the working folder, whichever way it comes to run.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from forged import DIGEST, json_of, put_together, take_apart, with_json

MARK = "executed"
CODE = f"open({MARK!r}, 'w').close()"
SHELL = f"touch {MARK}"


def torch_file(pickled: bytes) -> bytes:
    """Make a file as torch.save writes it, and as checkpoints were in earlier versions."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


# -- code


def opcodes(module: str, name: str, *arguments: str) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that call a function, in each way that the pickle machine has."""
    texts = b"".join(b"V" + text.encode() + b"\n" for text in arguments)
    found = f"c{module}\n{name}\n".encode()
    stacked = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"
    yield "REDUCE", found + b"(" + texts + b"tR."
    yield "OBJ", b"(" + found + texts + b"o."
    yield "INST", b"(" + texts + f"i{module}\n{name}\n".encode() + b"."
    yield "NEWOBJ", b"\x80\x02" + found + b"(" + texts + b"t\x81."
    yield "NEWOBJ_EX", b"\x80\x04" + found + b"(" + texts + b"t}\x92."
    yield "STACK_GLOBAL", b"\x80\x04" + stacked + b"(" + texts + b"tR."
    yield "within a dict", b"\x80\x02}X\x05\x00\x00\x00epoch" + found + b"(" + texts + b"tRs."
    yield "memoised", b"\x80\x02" + found + b"q\x00(" + texts + b"tq\x01h\x00h\x01R."


CALLS = [
    ("os", "system", SHELL),
    ("posix", "system", SHELL),
    ("subprocess", "getoutput", SHELL),
    ("builtins", "eval", CODE),
    ("builtins", "exec", CODE),
    ("__builtin__", "eval", CODE),
    ("torch.serialization", "os.system", SHELL),
    ("torch._utils", "torch.os.system", SHELL),
    ("timeit", "timeit", CODE),
    ("code", "InteractiveInterpreter.runcode", CODE),
    ("runpy", "run_path", "payload.py"),
    ("torch.hub", "load_local", "payload.py"),
    ("torch", "load", "payload.pickle"),
    ("pickle", "loads", base64.b64encode(b"no pickle").decode()),
    ("importlib", "import_module", "payload"),
]


class Calls:
    """Is pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def code(genuine: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield files that carry code: as a pickle, in each place that a checkpoint has, or named in its JSON."""
    header, body = take_apart(genuine)
    for call in CALLS:
        for way, pickled in opcodes(*call):
            yield f"{call[0]}.{call[1]} by {way}", torch_file(pickled)
        name = f"{call[0]}.{call[1]}"
        for tag in (name, "call", "py/reduce", "type", "class", "ndarray", "function", "pickle"):
            value = {f"${tag}": [name, call[2]], "args": [call[2]]}
            yield f"{name} as ${tag}", with_changed_json(genuine, extra=value)
    for protocol in range(6):
        for function, argument in ((os.system, SHELL), (eval, CODE), (exec, CODE)):
            plain = pickle.dumps({"epoch": 1, "model": Calls(function, argument)}, protocol)
            what = f"{function.__name__}, protocol {protocol}"
            yield f"{what}, bare", plain
            yield f"{what}, as JSON", with_json(genuine, plain)
            yield f"{what}, as the header", put_together(plain, body)
            at = next(iter(each for name, each in header.items() if name.startswith("model.")))[
                "data_offsets"
            ]
            hidden = plain[: at[1] - at[0]].ljust(at[1] - at[0])
            changed = put_together(header, body[: at[0]] + hidden + body[at[1] :])
            yield f"{what}, as weights", with_changed_json(changed, optimizer=None)
            text = base64.b64encode(plain).decode()
            yield f"{what}, as bytes", with_changed_json(genuine, scheduler={"$bytes": text})


def with_changed_json(content: bytes, **changes: Any) -> bytes:
    """Make a checkpoint some of whose parts are others."""
    return with_json(content, json.dumps(json.loads(json_of(content)) | changes).encode())


# -- what exhausts


def bombs(genuine: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield small checkpoints that ask for much memory or time, each as what makes it."""
    header, body = take_apart(genuine)
    metadata = header["__metadata__"]
    first = next(name for name in header if name.startswith("model."))
    size = len(body)

    def with_header(**changes: Any) -> Callable[[], bytes]:
        return lambda: put_together(header | changes, body)

    def with_many(number: int, entry: dict[str, Any]) -> Callable[[], bytes]:
        return lambda: put_together(header | {f"e{each}": entry for each in range(number)}, body)

    def with_entry(**changes: Any) -> Callable[[], bytes]:
        return with_header(**{first: header[first] | changes})

    def with_text(text: bytes) -> Callable[[], bytes]:
        return lambda: with_json(genuine, text)

    def with_parts(**changes: Any) -> Callable[[], bytes]:
        return lambda: with_changed_json(genuine, **changes)

    for length in (0, 1, size, 2**23, 2**23 + 1, 2**31, 2**62, 2**63, 2**64 - 1):
        yield f"a header of {length} bytes", lambda length=length: struct.pack("<Q", length) + genuine[8:]
    for what, raw in JSON.items():
        inside = b'{"__metadata__":' + json.dumps(metadata, separators=(",", ":")).encode() + b',"a":'
        yield f"a header of {what}", lambda raw=raw, inside=inside: put_together(inside + raw + b"}", body)
        yield f"JSON of {what}", with_text(raw)
        for part in ("model", "scheduler", "rng"):
            text = json.dumps(json.loads(json_of(genuine)) | {part: "@@"}).encode()
            yield f"a {part} of {what}", with_text(text.replace(b'"@@"', raw))
    for what, entry in ENTRIES.items():
        yield what, with_entry(**entry)
    places = header[first]["data_offsets"]
    yield "a tensor that is not there", with_header(more=header[first] | {"data_offsets": [size, size + 4]})
    yield (
        "all tensors in one place",
        lambda: put_together(
            header | {name: header[first] for name in header if name.startswith("model.")}, body
        ),
    )
    yield (
        "a tensor within another",
        with_header(more={"dtype": "U8", "shape": [1], "data_offsets": [places[0]] * 2}),
    )
    for number in (1000, 30_000, 100_000):
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        yield f"{number} empty tensors", with_many(number, empty)
        shapeless = {"dtype": "F32", "shape": [], "data_offsets": [0, 0]}
        yield f"{number} tensors of nothing", with_many(number, shapeless)
    for number in (1000, 100_000):
        one = {f"a{each}": {"$tensor": first} for each in range(number)}
        yield f"a model of {number} names for one tensor", with_parts(model=one)
        yield (
            f"moments of {number} parameters",
            with_parts(
                optimizer={"state": {"$dict": [[each, one] for each in range(3)]}, "param_groups": []}
            ),
        )
        yield (
            f"{number} states of generators",
            with_parts(rng={f"cuda:{each}": None for each in range(number)}),
        )
        yield f"an outline of {number} lines", with_parts(outline=dict.fromkeys(map(str, range(number)), "x"))
    for name in metadata:
        for text in ("", "-1", "9" * 13, "9" * 10**6, "\x1b]0;title\x07", "1e3", "٣", "1\n"):
            other = {"__metadata__": metadata | {name: text}}
            if name not in (DIGEST, "format"):
                yield f"{name} of {text[:20]!r}", lambda other=other: put_together(header | other, body + b"")
    for name in ("\x1b]0;title\x07\x1b[2J", "../../etc/passwd", "a\nb", "\u202etxt.exe", "x" * 60_000, "\0"):
        short = f"{name[:20]!r}"
        yield f"a tensor named {short}", with_header(**{name: header[first]})
        yield f"a weight named {short}", with_parts(model={name: {"$tensor": first}})
        yield f"a mark named {short}", with_parts(extra={f"${name}": 1})
        yield f"an outline of {short}", with_parts(outline={name: name, "optimizer": name})
        yield f"a generator named {short}", with_parts(rng={name: 1, "cpu": 1, "python": 1})
        yield f"a part named {short}", with_parts(**{name: 1})
        yield f"a scheduler with {short}", with_parts(scheduler={name: 1})
        yield f"a dtype named {short}", with_entry(dtype=name)
        yield (
            f"a version of {short}",
            lambda name=name: put_together(
                header | {"__metadata__": metadata | {"gpulesson checkpoint": name}}, body
            ),
        )


JSON = {
    "a hundred thousand lists in one another": b"[" * 100_000 + b"]" * 100_000,
    "four million lists in one another": b"[" * 4_000_000 + b"]" * 4_000_000,
    "a thousand lists in one another": b"[" * 1000 + b"]" * 1000,
    "a hundred thousand dicts in one another": b'{"a":' * 100_000 + b"0" + b"}" * 100_000,
    "lists without an end": b"[" * 1_000_000,
    "two million empty lists": b"[" + b"[]," * 2_000_000 + b"0]",
    "290,000 empty lists": b"[" + b"[]," * 145_000 + b"0]",
    "290,000 texts": b"[" + b",".join(b'"%d"' % number for number in range(290_000)) + b"]",
    "290,000 names": b"{" + b",".join(b'"%d":0' % number for number in range(290_000)) + b"}",
    "a text of four million smileys": b'"' + "😀".encode() * 10 + b"x" * 4_000_000 + b'"',
    "a text of nine million letters": b'"' + b"x" * 9_000_000 + b'"',
    "a number of a million digits": b"7" * 10**6,
    "a number of a million digits behind the point": b"0." + b"7" * 10**6,
    "a number with a large exponent": b"-1e" + b"9" * 100_000,
    "many numbers of 4000 digits": b"[" + b",".join([b"7" * 4000] * 2000) + b"]",
    "half a text": b'"\\',
    "a lonely surrogate": b'"\\ud800"',
    "tuples in one another": b'{"$tuple":[' * 20_000 + b"]}" * 20_000,
    "bytes of 8 MB": b'{"$bytes":"' + b"A" * 8_000_000 + b'"}',
    "a deque without an end": b'{"$deque":[1],"maxlen":9223372036854775807}',
    "a set of a hundred thousand": b'{"$set":[' + b",".join(b"%d" % each for each in range(10**5)) + b"]}",
    "keys that are tuples of tuples": b'{"$dict":[[' + b'{"$tuple":[' * 400 + b"]}" * 400 + b",1]]}",
    "a Counter of texts": b'{"$Counter":{"a":"b"}}',
    "a name twice": b'{"a":1,"a":2}',
    "a mark in a mark": b'{"$tuple":{"$tuple":{"$tuple":1}}}',
    "a hundred thousand marks": b"[" + b'{"$Size":[]},' * 10**5 + b"0]",
}
"""What stands where something else should: as a header, as the JSON, or in it."""

ENTRIES: dict[str, dict[str, Any]] = {
    "a tensor of a terabyte": {"shape": [2**38], "data_offsets": [0, 2**40]},
    "a tensor of 2^63 numbers": {"shape": [2**63]},
    "a tensor larger than its bytes": {"shape": [2**30]},
    "a negative size": {"shape": [-4]},
    "a negative place": {"data_offsets": [-8, 0]},
    "places the wrong way round": {"data_offsets": [64, 0]},
    "a place beyond the end": {"data_offsets": [2**50, 2**50 + 4]},
    "a shape that overflows": {"shape": [2**32, 2**32]},
    "a hundred thousand dimensions": {"shape": [1] * 10**5},
    "sizes that are texts": {"shape": ["4"]},
    "sizes that are dicts": {"shape": [{}]},
    "a stride, and a shape that it would fill": {"stride": [0], "shape": [2**40]},
    "no dtype": {"dtype": None},
}
"""Changes of a tensor's entry in the header."""


def special_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Make what has a checkpoint's name and is no file, or one without an end."""

    def place() -> Path:
        inside = folder / f"special {len(list(folder.iterdir()))}"
        inside.mkdir()
        return inside / "a.safetensors"

    if hasattr(os, "mkfifo"):
        os.mkfifo(path := place())
        yield "a pipe", path
    for device in ("/dev/zero", "/dev/random", "/dev/full", "/dev/stdin", "/proc/kmsg"):
        if os.path.exists(device):  # noqa: PTH110
            (path := place()).symlink_to(device)
            yield f"a link to {device}", path
    (path := place()).symlink_to(path)
    yield "a link to itself", path
    (path := place()).symlink_to(path.with_name("nowhere"))
    yield "a link to nothing", path
    (path := place()).mkdir()
    yield "a folder", path
    for size in (2**33, 2**40):
        with (path := place()).open("wb") as file:
            file.truncate(size)
        yield f"a sparse file of {size >> 30} GB", path
    for name in (
        "\x1b[31m\x1b]0;x\x07.safetensors",
        "a\nb.safetensors",
        "\x9b31m.safetensors",
        "‮.safetensors",
        "a" * 200 + ".safetensors",
    ):
        path = place().with_name(name)
        path.write_bytes(b"no checkpoint")
        yield f"a file named {name[:20]!r}", path
    path = Path(os.fsdecode(os.fsencode(place().parent) + b"/\xff\xfe.safetensors"))
    path.write_bytes(b"no checkpoint")
    yield "a name that is no UTF-8", path
