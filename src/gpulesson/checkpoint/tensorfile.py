"""Write and read files in the safetensors format, with a digest: tensors and texts, nothing that could run.

Such a file is 8 bytes with the length of what follows, a JSON object that gives each tensor's dtype, shape
and place, and the bytes of the tensors one after the other. Ours begins with its own SHA-256, as the first
entry of ``__metadata__``: the digest of the whole file, with zeros in the place of its 64 digits. Other
programs read the file all the same.

What reads here believes no number that it has not compared, takes no more memory than the file has bytes, and
compares the very bytes that the tensors are made of. (The library ``safetensors`` has no digest; the tests
compare with it.)
"""

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

MOST_TEXT = 2**22
"""Bytes of JSON in one piece."""
MOST_VALUES = 300_000
"""Values in it: half a second's work, and some 40 MB of memory."""
_MOST_DIMENSIONS = 64
_BLOCK = 2**20

_DIGEST_BEGIN = b'{"__metadata__":{"sha256":"'
_DIGEST_AT = 8 + len(_DIGEST_BEGIN)  # in the file
_NO_DIGEST = "0" * 64


class Refused(ValueError):
    """The file, or what is to be written, is not as it has to be; the message is the end of a sentence."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: its dtype and shape, and which bytes of the file it has."""

    dtype: torch.dtype
    shape: list[int]
    begin: int
    end: int

    def read(self, file: BinaryIO) -> tuple[bytearray, Tensor]:
        """Read the tensor where the file stands; it shares the memory of the bytes that were read."""
        content = bytearray(self.end - self.begin)
        if file.readinto(content) != len(content):  # type: ignore[attr-defined]
            raise Refused("it has become shorter while it was read")
        flat = torch.frombuffer(content, dtype=self.dtype) if content else torch.empty(0, dtype=self.dtype)
        return content, flat.reshape(self.shape)


@dataclass(frozen=True)
class Header:
    """What stands before the tensors; `digest` is None in a file of other programs."""

    raw: bytes
    metadata: dict[str, str]
    entries: dict[str, Entry]  # in the order of the file
    digest: str | None

    def read_tensors(self, file: BinaryIO) -> dict[str, Tensor]:
        """Read all tensors into memory of their own, on the CPU; none is returned if the digest is wrong.

        `file` stands behind the header, where `read_header` leaves it.
        """
        digest, tensors = self._begin(), {}
        for name, entry in self.entries.items():
            content, tensors[name] = entry.read(file)
            digest.update(content)
        self._compare(digest)
        return tensors

    def verify(self, file: BinaryIO) -> None:
        """Compare the digest of the whole file, and keep nothing of it."""
        digest = self._begin()
        while block := file.read(_BLOCK):
            digest.update(block)
        self._compare(digest)

    def _begin(self) -> Any:
        """Begin the digest of the whole file, which goes on with what follows the header."""
        raw = self.raw
        if self.digest is not None:
            raw = raw.replace(_DIGEST_BEGIN + self.digest.encode(), _DIGEST_BEGIN + _NO_DIGEST.encode(), 1)
        return hashlib.sha256(len(raw).to_bytes(8, "little") + raw)

    def _compare(self, digest: Any) -> None:
        """Raise `Refused` unless the digest of all bytes is the one that the file names."""
        if self.digest is not None and digest.hexdigest() != self.digest:
            raise Refused("its digest is not that of its content")


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the tensors, whose dtypes have to be among `DTYPES`, and the texts."""
    # numbers of 8 bytes come first, then those of 4, so that each begins at a multiple of its size
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    entries: dict[str, Any] = {"__metadata__": {"sha256": _NO_DIGEST, **metadata}}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        place = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        entries[name] = place
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    check_size(header, f"its {len(tensors):,} tensors")
    digest = hashlib.sha256()

    def put(data: Any) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _BLOCK):  # what was just written is still in the processor's cache
            file.write(view[start : start + _BLOCK])
            digest.update(view[start : start + _BLOCK])

    put(len(header).to_bytes(8, "little") + header)
    for name in order:
        put(memory_of(tensors[name].detach().to("cpu").contiguous()))
    file.seek(_DIGEST_AT)
    file.write(digest.hexdigest().encode())


def read_header(file: BinaryIO) -> Header:
    """Read a file's beginning, and see that the tensors fill the rest without gap or overlap."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8) or b"", "little")
    if size < 8 or length > min(size - 8, MOST_TEXT):
        raise Refused(f"its {size} bytes do not begin as a safetensors file does")
    raw = file.read(length)
    content = parse(raw)
    metadata = content.pop("__metadata__", {}) if isinstance(content, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Refused("its header is no object with texts as __metadata__")
    entries = {name: _entry(place) for name, place in content.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    end = 0
    for entry in entries.values():
        if entry.begin != end:
            raise Refused("its tensors overlap, or leave gaps")
        end = entry.end
    if end != size - 8 - length:
        raise Refused(f"its tensors have {end} bytes, and {size - 8 - length} are there")
    ours = raw.startswith(_DIGEST_BEGIN)
    return Header(raw, metadata, entries, metadata["sha256"] if ours else None)


def parse(text: bytes, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Read JSON that costs no more than `MOST_VALUES`; `hook` gets the pairs of each object."""
    check_size(text, "its JSON")
    try:
        return json.loads(
            text.decode(),
            object_pairs_hook=hook or unique,
            parse_constant=_no_number,
            parse_int=lambda digits: int(digits) if len(digits) <= 4000 else _no_number(digits),
        )
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise Refused("its JSON is not as it was written") from error


def check_size(text: bytes, what: str) -> None:
    """Raise `Refused` if this JSON is too long, or may hold too many values, to be read at little cost."""
    values = sum(text.count(mark) for mark in b",[{")
    if len(text) > MOST_TEXT or values > MOST_VALUES:
        raise Refused(
            f"{what} needs {len(text):,} bytes of JSON with {values:,} values, and at most {MOST_TEXT:,} and "
            f"{MOST_VALUES:,} are read: long lists of numbers belong in tensors"
        )


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object's pairs a dict; a name that comes twice is refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refused("a name in its JSON comes twice")
    return found


def identity(tensor: Tensor) -> object:
    """Return a key that two tensors share if they are one, as tied weights are."""
    place = tensor.device, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg()
    return (*place, tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)


def memory_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return b""
    memory: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # which lives as long as they do
    return memory


def _entry(place: Any) -> Entry:
    """Read one entry of the header, and see that its numbers fit together."""
    if not isinstance(place, dict) or place.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refused("an entry of its header is no tensor")
    dtype, shape, offsets = DTYPES.get(str(place["dtype"])), place["shape"], place["data_offsets"]
    if dtype is None:
        raise Refused("it has a tensor of a dtype that is not known here")
    counts = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not counts or not all(type(number) is int and 0 <= number < 2**60 for number in shape + offsets):
        raise Refused("a shape or a place of a tensor is no list of counts")
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        raise Refused("a tensor's shape is not that of its bytes")
    return Entry(dtype, shape, *offsets)


def _no_number(text: str) -> Any:
    raise Refused("a number in its JSON is none that was written")
