"""Makes files that would run code, or exhaust the machine, if they were read without care.

Each has a right digest: who can write such a file can write that, too. The code that they carry makes a
file ``executed`` in the working folder, whichever way it comes to run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

MARK = "executed"
CODE = f"open({MARK!r}, 'w').close()"
SHELL = f"touch {MARK}"
SIGNED = re.compile(rb"gpulesson checkpoint [ -~]* sha256 ")


def with_digest(archive: bytes, genuine: bytes) -> bytes:
    """End a zip file, which has no comment, in that of a genuine checkpoint, with the digest put right."""
    comment = genuine[-64 - len(SIGNED.findall(genuine)[-1]) : -64]
    whole = archive[:-2] + struct.pack("<H", len(comment) + 64) + comment
    return whole + hashlib.sha256(whole).hexdigest().encode()


def members(genuine: bytes) -> dict[str, bytes]:
    """Read the members of a checkpoint, by the name behind the first folder."""
    with zipfile.ZipFile(io.BytesIO(genuine)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def zipped(
    contents: Mapping[str, bytes | int], *, top: str = "archive", deflated: tuple[str, ...] = ()
) -> bytes:
    """Write a zip file without comment; some of its members are packed. A number: so many MB of zeros."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(f"{top}/{name}")
            entry.compress_type = zipfile.ZIP_DEFLATED if name in deflated else zipfile.ZIP_STORED
            with archive.open(entry, "w") as member:
                for _ in range(content if isinstance(content, int) else 0):
                    member.write(bytes(2**20))
                member.write(b"" if isinstance(content, int) else content)
    return ended(file.getvalue())


def ended(archive: bytes, count: int = 0) -> bytes:
    """Put the end that torch writes, the one for large files, before the common one; `count` members."""
    short = archive.rindex(b"PK\5\6")
    number, length, start = struct.unpack_from("<10xHII", archive, short)
    number = count or number
    long = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, number, number, length, start)
    return archive[:short] + long + struct.pack("<4sIQI", b"PK\6\7", 0, short, 1) + archive[short:]


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
    """Yield checkpoints that carry code."""
    parts = members(genuine)

    def checkpoint(pickled: bytes, where: str = "data.pkl") -> bytes:
        return with_digest(zipped({**parts, where: pickled}), genuine)

    for call in CALLS:
        for way, pickled in opcodes(*call):
            yield f"{call[0]}.{call[1]} by {way}", checkpoint(pickled)
    for protocol in range(6):
        for function, argument in ((os.system, SHELL), (eval, CODE), (exec, CODE)):
            plain = pickle.dumps({"epoch": 1, "model": Calls(function, argument)}, protocol)
            yield f"{function.__name__}, protocol {protocol}", checkpoint(plain)
            yield f"{function.__name__}, protocol {protocol}, bare", with_digest_at_the_end(plain, genuine)
    deep = Calls(os.system, SHELL)
    for name, nest in {
        "in a list": [[[deep]]],
        "as a key": {(1, (2, Calls(eval, f"{CODE} or 1"))): 1},
        "twice": [deep, deep],
        "state": Calls(getattr, Calls(__import__, "os"), "system"),
    }.items():
        yield name, checkpoint(pickle.dumps(nest, 2))
    for extra in ("constants.pkl", "code/__torch__.py", ".data/serialization_id", "data/0", "version"):
        yield f"code in {extra}", checkpoint(pickle.dumps(Calls(os.system, SHELL), 2), extra)
    script = {"data.pkl": parts["data.pkl"], "constants.pkl": b"\x80\x02).", "code/a.py": CODE.encode()}
    yield "made to look like TorchScript", with_digest(zipped({**parts, **script}), genuine)


def with_digest_at_the_end(content: bytes, genuine: bytes) -> bytes:
    """End bytes that are no zip file as a checkpoint ends."""
    whole = content + genuine[-64 - len(SIGNED.findall(genuine)[-1]) : -64]
    return whole + hashlib.sha256(whole).hexdigest().encode()


# -- what exhausts


def bombs(genuine: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield small checkpoints that ask for much memory or time, each as what makes it."""
    parts = members(genuine)
    storage = next(name for name in parts if name.startswith("data/"))

    def checkpoint(changed: Mapping[str, bytes | int], *deflated: str) -> Callable[[], bytes]:
        return lambda: with_digest(zipped({**parts, **changed}, deflated=deflated), genuine)

    def pickled(content: bytes) -> Callable[[], bytes]:
        return checkpoint({"data.pkl": content})

    for megabytes in (200, 600):
        for name in (storage, "data.pkl"):
            yield f"a packed {name} of {megabytes} MB", checkpoint({name: megabytes}, name)
    for name in ("version", "byteorder", ".format_version", ".data/serialization_id"):
        yield f"a packed {name} of 200 MB", checkpoint({name: 200}, name)
    yield "every storage packed, 400 MB", checkpoint(dict.fromkeys(parts, 30), *parts)
    for name, opcode in {"BINUNICODE": b"X", "BINBYTES": b"B", "BINSTRING": b"T", "LONG4": b"\x8b"}.items():
        yield f"{name} that announces 2 GB", pickled(b"\x80\x03" + opcode + b"\xfe\xff\xff\x7fabc.")
    for name, opcode in {"BINUNICODE8": b"\x8d", "BINBYTES8": b"\x8e", "BYTEARRAY8": b"\x96"}.items():
        yield f"{name} that announces a terabyte", pickled(b"\x80\x05" + opcode + struct.pack("<Q", 2**40))
    yield "a place in the memo far out", pickled(b"\x80\x02Nr\xff\xff\xff\x7f.")
    for depth in (10**4, 10**6):
        yield f"{depth} lists in one another", pickled(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
        yield f"{depth} tuples in one another", pickled(b"\x80\x02N" + b"\x85" * depth + b".")
        dicts = b"}X\x01\x00\x00\x00a" * depth + b"N" + b"s" * depth
        yield f"{depth} dicts in one another", pickled(b"\x80\x02" + dicts + b".")
        outline = b"X\x07\x00\x00\x00outline" + b"]" * depth + b"a" * (depth - 1)
        yield f"an outline of {depth} lists in one another", pickled(b"\x80\x02}" + outline + b"s.")
    twice = b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(40))
    yield "lists that hold one another twice", pickled(b"\x80\x02]q\x00" + twice + b".")
    twice = b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(40))
    yield "tuples that hold one another twice, as a key", pickled(b"\x80\x02})q\x00" + twice + b"Ns.")
    yield "an integer of a million digits", pickled(b"\x80\x02I" + b"7" * 10**6 + b"\n.")
    yield "a LONG of a million digits", pickled(b"\x80\x02L" + b"7" * 10**6 + b"L\n.")
    for name in ("xn--" + "9" * 60_000, "a" * 10**6, "é" * 10**5):
        found = f"c{name}\n{name}\n)R.".encode()
        yield f"a module with a name of {len(name)} letters", pickled(b"\x80\x02" + found)
    for encoding in ("punycode", "idna", "unicode_escape", "zlib_codec", "bz2_codec", "quopri_codec"):
        text = b"X" + struct.pack("<I", 200_000) + b"9" * 200_000
        name = b"X" + struct.pack("<I", len(encoding)) + encoding.encode()
        yield (
            f"_codecs.encode to {encoding}",
            pickled(b"\x80\x02c_codecs\nencode\n" + text + name + b"\x86R."),
        )
    kinds = (
        "collections Counter",
        "collections OrderedDict",
        "builtins bytearray",
        "torch Size",
        "torch device",
    )
    for kind in kinds:
        found = b"c" + kind.replace(" ", "\n").encode() + b"\nJ\xff\xff\xff\x7f\x85R."
        yield f"a {kind} of 2 GB", pickled(b"\x80\x02" + found)
    for what, tensor in TENSORS.items():
        yield what, pickled(b"\x80\x02" + tensor_pickle(*tensor) + b".")
        model = b"X\x05\x00\x00\x00modelX\x01\x00\x00\x00a" + tensor_pickle(*tensor)
        yield f"a model of {what}", pickled(b"\x80\x02}" + model[:10] + b"}" + model[10:] + b"ss.")
    yield "ten thousand members", checkpoint({f"data/{number}": b"" for number in range(10_000)})
    yield "members that overlap", lambda: overlapping(genuine)
    yield "a directory that announces 60,000 members", lambda: with_digest(counted(parts), genuine)
    yield "a member that announces 4 GB", lambda: with_digest(announced(zipped(parts), storage), genuine)
    for name in ("\x1b]0;title\x07\x1b[2J", "../../etc/passwd", "a\nb", "\u202etxt.exe", "x" * 60_000):
        yield f"a member named {name[:20]!r}", checkpoint({name: b""})
        hidden = f"c{name.replace(chr(10), ' ')}\nname\n)R.".encode()
        yield f"a global named {name[:20]!r}", pickled(b"\x80\x02" + hidden)


def tensor_pickle(
    size: int, shape: tuple[int, ...], stride: tuple[int, ...], kind: str = "FloatStorage"
) -> bytes:
    """Pickle a tensor as torch does, with a storage and a shape as told."""

    def number(value: int) -> bytes:
        raw = value.to_bytes(9, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw

    def row(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    storage = (
        b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text("0") + text("cpu") + number(size) + b"tQ"
    )
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + number(0)
        + row(shape)
        + row(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


TENSORS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "a storage of a terabyte": (2**38, (2,), (1,)),
    "a storage of 2^63 numbers": (2**63, (2,), (1,)),
    "a tensor larger than its storage": (4, (2**30,), (1,)),
    "a tensor of stride 0": (4, (2**40,), (0,)),
    "a negative stride": (4, (2,), (-1,)),
    "a negative size": (-4, (2,), (1,)),
    "a shape that overflows": (4, (2**62, 2**62), (1, 1)),
    "a hundred thousand dimensions": (4, (1,) * 10**5, (1,) * 10**5),
}
"""The numbers of their storage, their shape and stride."""


def overlapping(genuine: bytes) -> bytes:
    """Have many entries of the directory point at one packed member of 100 MB: a trick that is well known."""
    packed = zipped({"a": 100, **members(genuine)}, deflated=("a",))
    begin, end, short = packed.index(b"PK\1\2"), packed.rindex(b"PK\6\6"), packed.rindex(b"PK\5\6")
    entry = packed[begin : packed.index(b"PK\1\2", begin + 4)]
    many = entry * 500 + packed[begin:end]
    count = struct.unpack_from("<10xH", packed, short)[0] + 500
    closing = struct.pack("<4s4xHHIIH", b"PK\5\6", count, count, len(many), begin, 0)
    return with_digest(ended(packed[:begin] + many + closing), genuine)


def counted(parts: Mapping[str, bytes]) -> bytes:
    """Let the end of a zip file announce far more members than there are."""
    plain = zipped(parts)
    end, short = plain.rindex(b"PK\6\6"), plain.rindex(b"PK\5\6")
    return ended(plain[:end] + plain[short:], count=60_000)


def announced(archive: bytes, name: str) -> bytes:
    """Let the directory say that a stored member is 4 GB long."""
    changed = bytearray(archive)
    place = archive.rindex(name.encode()) - 46 - len("archive/")
    assert archive[place : place + 4] == b"PK\x01\x02"
    struct.pack_into("<II", changed, place + 20, 2**32 - 2, 2**32 - 2)
    return bytes(changed)


def special_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Make what has a checkpoint's name and is no file, or one without an end."""

    def place() -> Path:
        inside = folder / f"special {len(list(folder.iterdir()))}"
        inside.mkdir()
        return inside / "a.pt"

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
    for name in ("\x1b[31m\x1b]0;x\x07.pt", "a\nb.pt", "\x9b31m.pt", "‮.pt", "a" * 200 + ".pt"):
        path = place().with_name(name)
        path.write_bytes(b"no checkpoint")
        yield f"a file named {name[:20]!r}", path
    path = Path(os.fsdecode(os.fsencode(place().parent) + b"/\xff\xfe.pt"))
    path.write_bytes(b"no checkpoint")
    yield "a name that is no UTF-8", path


# -- data


def data_files(contents: dict[str, bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Yield what stands in the place of one data file: what it is, the file's name, its content."""
    zeros = b"".join(packed_zeros(500))
    for name, content in contents.items():
        yield f"{name}.gz that unpacks to 500 MB", f"{name}.gz", zeros
        known = gzip.compress(content, mtime=0)
        yield f"{name}.gz, genuine, with 500 MB behind it", f"{name}.gz", known + zeros
        head, rest = content[:4], content[8:]
        for count in (0, 2**31 - 1, 2**32 - 1, 70_001):
            yield f"{name} that announces {count}", name, head + struct.pack(">I", count) + rest
        yield f"{name} of 255 dimensions", name, b"\0\0\x08\xff" + content[4:]
        yield f"{name} of doubles", name, b"\0\0\x0e" + content[3:]
        yield f"{name}, empty", name, b""
        yield f"{name}.gz, empty", f"{name}.gz", b""


def packed_zeros(megabytes: int) -> Iterator[bytes]:
    """Pack zeros with gzip, a mebibyte at a time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    for _ in range(megabytes):
        yield packer.compress(bytes(2**20))
    yield packer.flush()
