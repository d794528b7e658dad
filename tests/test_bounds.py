"""Hostile files with a right digest: refused, and at no more cost than their bytes have."""

import copy
import os
import pickle
import re
import struct
import sys
import zipfile

import pytest
import torch
from torch import nn

from gpulesson import checkpoint as checkpoint_module
from gpulesson.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

MANY = 380_000  # opcodes, of 400,000 that a pickle may have


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def call(name, *arguments):
    module, own = name.rsplit(".", 1)
    return f"c{module}\n{own}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def storage(count, kind="FloatStorage", key="0"):
    return (
        b"("
        + text("storage")
        + f"ctorch\n{kind}\n".encode()
        + text(key)
        + text("cpu")
        + number(count)
        + b"tQ"
    )


def shape(*sizes):
    return b"(" + b"".join(map(number, sizes)) + b"t"


def tensor(sizes, strides, *, count=4, hooks=b"ccollections\nOrderedDict\n)R", offset=0, kind="FloatStorage"):
    parts = storage(count, kind), number(offset), shape(*sizes), shape(*strides), b"\x89", hooks
    return call("torch._utils._rebuild_tensor_v2", *parts)


def laughs(opening, closing, depth=60):
    """A container of two that are the same container of two, and so on."""
    levels = b"".join(opening + b"h\0h\0" + closing + b"q\0" for _ in range(depth))
    return b"]q\0" + levels


def collisions(bits):
    """Tuples with one hash: -1 and -2 have the same in CPython."""
    keys = [
        b"(" + b"".join(number(-1 - (n >> bit & 1)) for bit in range(bits)) + b"t" for n in range(2**bits)
    ]
    return b"}(" + b"".join(key + b"N" for key in keys) + b"u"


BIG_LIST = b"](" + b"K\1" * 100_000 + b"eq\0"
AGAIN = b"(" + b"ccollections\nOrderedDict\n(h\0tR" * 5000 + b"t"
PICKLES = {
    "a codec": call("_codecs.encode", text("a"), text("rot13")),
    "punycode": call("_codecs.encode", text("é" * 300_000), text("punycode")),
    "one text as bytes over and over": text("x" * 100_000)
    + b"q\0"
    + call("_codecs.encode", b"h\0", text("latin1")) * 9000,
    "nested lists": laughs(b"](", b"e"),
    "nested tuples": laughs(b"(", b"t"),
    "nested dicts": b"}q\0" + (b"}(" + text("a") + b"h\0" + text("b") + b"h\0uq\0") * 60,
    "a list in itself": b"]q\0h\0ah\0a",
    "a dict in itself": b"}q\0" + text("a") + b"h\0sq\0h\0" + text("b") + b"h\0s",
    "lists without end": b"]" * 8_000_000,
    "dicts without end": b"}" * 8_000_000,
    "as many lists as are allowed": b"](" + b"]" * MANY + b"e",
    "as many dicts as are allowed": b"](" + b"}" * MANY + b"e",
    "as deep as is allowed": b"N" + b"\x85" * MANY,
    "lists in lists": b"](" * 200_000 + b"e" * 200_000,
    "sets without end": b"\x8f" * 2_000_000,
    "marks without end": b"(" * 8_000_000,
    "a list that grows by one": b"]" + b"Na" * MANY,
    "keys with one hash": collisions(14),
    "numbers with one hash": b"}("
    + b"".join(b"\x8a\x0c" + (n * (2**61 - 1)).to_bytes(12, "little") + b"N" for n in range(40_000))
    + b"u",
    "a set of tuples with one hash": call(
        "__builtin__.set", b"](" + collisions(8)[2:-1].replace(b"tN", b"t") + b"e"
    ),
    "a dict copied over and over": b"}q\0" + AGAIN,
    "a set made over and over": BIG_LIST + b"(" + b"c__builtin__\nset\n(h\0tR" * 9000 + b"t",
    "a Counter made over and over": BIG_LIST + b"(" + b"ccollections\nCounter\n(h\0tR" * 9000 + b"t",
    "a bytearray": call("__builtin__.bytearray", number(2_000_000_000)),
    "a tensor by its class": call("torch.Tensor", number(2_000_000_000)),
    "a storage by its class": call("torch.storage.UntypedStorage", number(2_000_000_000)),
    "a storage type called": call("torch.FloatStorage", number(2_000_000_000)),
    "a tensor without storage": call(
        "torch._utils._rebuild_meta_tensor_no_storage",
        b"ctorch\nfloat32\n",
        shape(2**30, 2**30),
        shape(1, 1),
        b"\x89",
    ),
    "a quantized tensor": call(
        "torch._utils._rebuild_qtensor",
        storage(16, "ByteStorage"),
        number(0),
        shape(2**30),
        shape(0),
        b"(ctorch\nper_tensor_affine\nG?\xf0\0\0\0\0\0\0K\0t",
        b"\x89",
        b"ccollections\nOrderedDict\n)R",
    ),
    "an expanded tensor": tensor([2**30, 2**30], [0, 0]),
    "an expanded tensor, counted": call("collections.Counter", tensor([2**30, 2], [0, 0])),
    "an expanded tensor as a set": call("__builtin__.set", tensor([2**30], [0])),
    "an expanded tensor as another type": call(
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
        tensor([2**30], [0]),
        b"ctorch\nfloat64\n",
        text("cpu"),
        b"\x89",
    ),
    "a tensor beyond its storage": tensor([4], [1], offset=1000),
    "a tensor before its storage": tensor([4], [1], offset=-2),
    "a tensor with wild strides": tensor([2, 2], [1000, 1]),
    "a tensor of negative size": tensor([-1, -4], [1, 1]),
    "a storage larger than its record": tensor([2**20], [1], count=2**20),
    "a storage smaller than its record": tensor([2], [1], count=2),
    "a storage of another type's size": tensor([4], [1], kind="DoubleStorage"),
    "a storage without record": storage(4, key="1"),
    "a storage that names a path": storage(4, key="../../x"),
    "a tensor with hooks": tensor([4], [1], hooks=b"ccollections\nOrderedDict\n)R(K\0Nu"),
    "attributes of a function": b"ctorch._utils\n_rebuild_tensor_v2\n}" + text("__defaults__") + b"Nsb",
    "attributes of a list": b"]}b",
    "a number as attributes": b"ccollections\nOrderedDict\n)RK\1b",
    "another protocol": b"\x80\4N",
    "os.system": call("os.system", text("true")),
    "builtins.eval": call("__builtin__.eval", text("1")),
    "a global with an escape sequence": b"c\x1b]0;title\x07\nname\n",
    "torch.load": call("torch.serialization.load", text("x")),
    "an instance": b"(i__builtin__\nset\n",
    "an unknown opcode": b"\xff",
    "nothing on the stack": b"R",
    "no end of a tuple": b"t",
    "an unknown memo": b"h\7",
    "a called text": text("a") + b")R",
    "nothing": b"",
    "too large": text("x" * (2**24 + 1)),
}

COSTLY = [name for name in PICKLES if re.search("without end|allowed|lists in lists", name)]


def write(path, data, *, records=None):
    """Write a file as torch does, with any pickle inside, and a right digest."""
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, content in {
        "data.pkl": data,
        "byteorder": b"little",
        **(records or {"data/0": bytes(16)}),
    }.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return seal(path)


def seal(path):
    with path.open("r+b") as file:
        checkpoint_module._seal(file, 0, 0)
    return path


def cost(path):
    """Load in a process that may take 100 MB; return the error, the seconds of work, and the megabytes."""
    import resource

    start, end = os.pipe()
    child = os.fork()
    if not child:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF)
            taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
            limit = taken + 100 * 2**20 + 4 * path.stat().st_size
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
            try:
                found = f"loaded {load_checkpoint(path)}"
            except CheckpointError as error:
                found = str(error)
            after = resource.getrusage(resource.RUSAGE_SELF)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            memory = (after.ru_maxrss - before.ru_maxrss) / 1024
            os.write(end, pickle.dumps((found[:3000], seconds, memory)))
        finally:
            os._exit(0)
    os.close(end)
    with os.fdopen(start, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer, "the process died"
    return pickle.loads(answer)


linux = pytest.mark.skipif(sys.platform != "linux", reason="counts the memory of a forked process")


@linux
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in COSTLY)) for name in PICKLES]
)
def test_a_hostile_pickle_is_refused_and_costs_little(tmp_path, name):
    data = PICKLES[name]
    path = write(tmp_path / "a.pt", data if data[:1] == b"\x80" else b"\x80\2" + data + b".")
    error, seconds, memory = cost(path)
    print(f"{seconds:5.2f} s {memory:6.1f} MB {path.stat().st_size / 2**20:5.1f} MB {name}: {error[:150]}")
    expected = "is no whole checkpoint:" if "allowed" in name else r"was not loaded\."
    assert re.search(rf"a\.pt {expected} ", error) and "MemoryError" not in error
    assert error.isprintable()
    assert seconds < 6  # about a third of it on a machine of its own; what is hostile would take minutes
    assert memory < 100 + path.stat().st_size / 2**20


def zipped(path, compression=zipfile.ZIP_STORED, **records):
    """Write a zip file as any program could, with the 64-bit end that torch writes."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(f"archive/{name}", content)
    return seal(longer_end(path))


def longer_end(path, *, locator=0, start=0):
    """Put the 64-bit end of the directory before the 32-bit end, each number off by what is asked."""
    data = path.read_bytes()
    count, length, begin = struct.unpack("<HII", data[-12:-2])
    end = len(data) - 22
    long = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, begin + start)
    long += struct.pack("<4sIQI", b"PK\6\7", 0, end + locator, 1)
    path.write_bytes(data[:end] + long + data[end:])
    return path


GOOD = b"\x80\2}."


def overlapping(path):
    """Many records that are the same bytes."""
    records = {"data.pkl": GOOD, **{f"data/{n}": bytes(100_000) for n in range(20)}}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(f"archive/{name}", content[: 100_000 if name == "data/0" else 10])
        for info in archive.infolist()[2:]:
            info.header_offset = archive.infolist()[1].header_offset
            info.file_size = info.compress_size = 100_000
    return seal(longer_end(path))


def empty(path):
    zipfile.ZipFile(path, "w").close()
    return seal(path)


def many_records(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", GOOD)
        info = archive.infolist()[0]
        for n in range(90_000):
            other = copy.copy(info)
            other.filename = f"archive/data/{n}"
            archive.filelist.append(other)
        archive._didModify = True
    return seal(path)


ARCHIVES = {
    "a compressed pickle": (
        lambda path: zipped(path, zipfile.ZIP_DEFLATED, **{"data.pkl": bytes(10**7)}),
        "compressed",
    ),
    "a compressed record": (
        lambda path: zipped(path, zipfile.ZIP_LZMA, **{"data.pkl": GOOD, "data/0": bytes(10**7)}),
        "compressed",
    ),
    "overlapping records": (overlapping, "overlap"),
    "many records": (many_records, "zip file|directory"),
    "an unknown record": (
        lambda path: zipped(path, **{"data.pkl": GOOD, "constants.pkl": GOOD}),
        "unknown or double",
    ),
    "a record twice": (lambda path: write(path, GOOD, records={"data.PKL": GOOD}), "unknown or double"),
    "a record with an escape sequence": (
        lambda path: zipped(path, **{"data/\x1b[2J": b""}),
        r"x1b\[2J that is unknown",
    ),
    "no pickle": (lambda path: zipped(path, **{"data/0": b""}), "no data.pkl"),
    "no 64-bit end": (empty, "no zip file as torch"),
    "a locator that leads elsewhere": (lambda path: elsewhere(path, locator=-1), "no zip file as torch"),
    "a directory that begins elsewhere": (lambda path: elsewhere(path, start=1), "no zip file as torch"),
}


def elsewhere(path, **off):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", GOOD)
        archive.writestr("archive/version", "3")
    return seal(longer_end(path, **off))


@linux
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_refused_and_costs_little(tmp_path, name):
    make, match = ARCHIVES[name]
    path = make(tmp_path / "a.pt")
    error, seconds, memory = cost(path)
    print(f"{seconds:5.2f} s {memory:6.1f} MB {path.stat().st_size / 2**20:5.1f} MB {name}: {error[-100:]}")
    assert re.search(rf"a\.pt was not loaded\. .*({match})", error)
    assert error.isprintable()
    assert seconds < 6  # about a third of it on a machine of its own; what is hostile would take minutes
    assert memory < 100 + path.stat().st_size / 2**20


def test_zip_files_like_these_are_read_if_nothing_is_wrong(tmp_path):
    """So that the ones above are refused for what is wrong with them."""
    for path in (elsewhere(tmp_path / "a.pt"), write(tmp_path / "b.pt", GOOD)):
        with pytest.raises(CheckpointError, match="no whole checkpoint"):
            load_checkpoint(path)


def test_what_torch_writes_for_plain_values_passes(tmp_path):
    extra = {
        "numbers": [1, -1, 2**31, 2**200, -(2**63), 0.5, 1j, True, None],
        "keys": {1: 2, "x": 3, 0.5: 4, None: 5},
        "texts": ["", "ü", "\U0001f600" * 300, b"bytes\xff"],
        "nest": ({"a": ({1, 2}, set(), (), [])}, [[], {}]),
        "same": [shared := [1, 2], shared, (3, 4)],
        "dtypes": [torch.float32, torch.bfloat16, torch.bool, torch.uint16, torch.float8_e4m3fn],
        "torch": [torch.Size([2, 3]), torch.device("cuda", 1), nn.Parameter(torch.ones(2))],
        "tensors": [
            torch.ones(dtype.itemsize, dtype=dtype)
            for dtype in (torch.bool, torch.uint8, torch.int16, torch.uint16, torch.half, torch.bfloat16)
        ],
        "more": [
            torch.ones(3, dtype=torch.complex64),
            torch.ones(2).to(torch.float8_e4m3fn),
            torch.empty(0, 3),
        ],
        "views": [base := torch.arange(6.0), base[2:4], base.view(2, 3).T],
        "sparse": torch.eye(3).to_sparse(),
    }
    path = save_checkpoint(tmp_path / "a.pt", model=nn.Linear(2, 2), epoch=1, extra=extra)
    found = load_checkpoint(path).extra
    assert str(found) == str(extra)


def test_a_tensor_that_was_expanded_is_refused_when_saving(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"shape \[2, 3\] over 1 stored numbers: keep tensor.contiguous"
    ):
        save_checkpoint(tmp_path / "a.pt", model=nn.Linear(1, 1), epoch=1, extra=torch.ones(1).expand(2, 3))


def test_a_list_that_is_too_long_is_refused_when_saving(tmp_path):
    with pytest.raises(CheckpointError, match=r"more than 400,000 values: long lists belong in tensors"):
        save_checkpoint(tmp_path / "a.pt", model=nn.Linear(1, 1), epoch=1, extra=[0.5] * 400_001)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_tensors_fit(tmp_path):
    """A checkpoint of a model with 3,000 parameters, and Adam's state."""
    state = {f"layer{n}.weight": torch.zeros(1) for n in range(12_000)}
    save_checkpoint(tmp_path / "a.pt", model=nn.Linear(1, 1), epoch=1, extra=state)
    assert len(load_checkpoint(tmp_path / "a.pt").extra) == 12_000
