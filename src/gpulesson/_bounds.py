"""Refuse a file that could cost far more than its bytes, or run code, before `torch.load` reads it.

``torch.load(…, weights_only=True)`` runs no code of a file, but believes its numbers: a kilobyte can ask for
gigabytes. So the pickle inside is first followed by opcode, with stand-ins for all that it would make. What
passes makes tensors no larger than their records, and about as many objects as it has opcodes.
"""

import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from gpulesson._files import printable

PLAIN = (
    "only tensors and plain values (numbers, texts, lists, dicts) belong in a checkpoint, since reading any "
    "other object may run code."
)
_MOST_VALUES = 400_000  # two seconds' work
_MOST_PICKLE = 2**24  # bytes
_MOST_DIRECTORY = 2**22  # bytes: 60,000 tensors
_NAME = re.compile(  # of a record in the zip file
    r"[\w.-]+/(data/\d{1,9}|data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id)",
    re.ASCII,
)
_ITEM_BYTES = {
    f"torch {name}Storage": size
    for size, names in {
        1: ["Byte", "Char", "Bool"],
        2: ["Half", "BFloat16", "Short"],
        4: ["Float", "Int"],
        8: ["Double", "Long", "ComplexFloat"],
        16: ["ComplexDouble"],
    }.items()
    for name in names
} | {"torch.storage UntypedStorage": 1}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Refused(Exception):
    """The file is not as `torch.save` writes it; the message is a sentence that says what was found."""


@dataclass(slots=True)
class _Made:
    """The stand-in of an object: what kind, the values in it counted as often as they occur, its items."""

    kind: str
    size: int = 1
    items: Any = ()
    shared: bool = False  # in more than one place: it may not grow, so that sizes stay right


class _Archive(zipfile.ZipFile):
    """One that does nothing at its end: what a signal raises in a ``__del__``, Python prints and forgets."""

    __del__ = object.__hash__  # type: ignore[assignment]  # made of C, in which no signal's handler runs


def check_bounds(file: BinaryIO, comment_bytes: int) -> None:
    """Raise `Refused`, or another error, if the zip file with a comment of that length is not harmless."""
    end = _check_end(file, comment_bytes)
    with _Archive(file) as archive:
        records = _check_records(archive, end)
        if not 0 < records.get("data.pkl", 0) <= _MOST_PICKLE:
            raise Refused(
                f"It has no data.pkl of at most {_MOST_PICKLE:,} bytes: long lists belong in tensors."
            )
        data = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
    try:
        _Pickle(data, records).follow()
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused("Its data.pkl is no pickle as torch.save writes it.") from error


def _check_end(file: BinaryIO, comment_bytes: int) -> int:
    """Return where the directory ends. Readers of zip files could differ in where they look for it.

    So the end must be as torch writes it: its 64-bit form right behind the directory, its locator, and its
    32-bit form.
    """
    end = file.seek(0, 2) - comment_bytes - 22 - 20 - 56
    file.seek(max(end, 0))
    mark, length, start, locator, here, last = struct.unpack("<4s36xQQ4s4xQ4x4s18x", file.read(98))
    if (mark, locator, last, here) != (b"PK\6\6", b"PK\6\7", b"PK\5\6", end) or start + length != end:
        raise Refused("It is no zip file as torch.save writes it.")
    if length > _MOST_DIRECTORY:
        raise Refused(f"Its zip directory has {length:,} bytes, more than {_MOST_DIRECTORY:,}.")
    return end


def _check_records(archive: zipfile.ZipFile, end: int) -> dict[str, int]:
    """Return each record's size. All are stored as they are, and together fit into the file."""
    records: dict[str, int] = {}
    for info in archive.infolist():
        found = _NAME.fullmatch(info.orig_filename)
        if not found or found[1] in records:
            raise Refused(f"It has a record {printable(info.orig_filename, 100)} that is unknown or double.")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise Refused(f"Its record {found[1]} is compressed, which torch.save does not do.")
        records[found[1]] = info.file_size
    if sum(records.values()) > end or len({name.partition("/")[0] for name in archive.namelist()}) > 1:
        raise Refused("Its records overlap, or lie in several folders.")
    return records


class _Pickle:
    """Follows the opcodes that `torch.save` uses for tensors and plain values, and refuses all others."""

    def __init__(self, data: bytes, records: dict[str, int]) -> None:
        self.data, self.records = data, records
        self.copied = 0  # by calls that copy what they are given, which must not happen over and over
        self.storages: dict[str, str] = {}

    def follow(self) -> None:
        stack: list[Any] = []
        marks: list[list[Any]] = []
        memo: dict[Any, Any] = {}
        for count, (opcode, value, _) in enumerate(pickletools.genops(self.data)):
            name = opcode.name
            if count > _MOST_VALUES:
                raise Refused(
                    f"Its pickle makes more than {_MOST_VALUES:,} values: long lists belong in tensors."
                )
            if name in _VALUES:
                stack.append(value)
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[value] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[value])
                if isinstance(memo[value], _Made):
                    memo[value].shared = True
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _TUPLES:
                stack[-_TUPLES[name] :] = [_tuple(stack[-_TUPLES[name] :])]
            elif name == "GLOBAL":
                stack.append(_known(str(value)))
            elif name == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call(function.kind, arguments.items))
            elif name == "BINPERSID":
                stack.append(self._storage(*stack.pop().items))
            elif name == "MARK":
                marks.append(stack)
                stack = []
            elif name in ("TUPLE", "APPENDS", "SETITEMS"):
                items, stack = stack, marks.pop()
                if name == "TUPLE":
                    stack.append(_tuple(items))
                else:
                    _grow(stack[-1], items, keys=name == "SETITEMS")
            elif name == "APPEND":
                item = stack.pop()
                _grow(stack[-1], [item], keys=False)
            elif name == "SETITEM":
                item, key = stack.pop(), stack.pop()
                _grow(stack[-1], [key, item], keys=True)
            elif name == "BUILD":  # the attributes of a state dict
                state = stack.pop()
                if (stack[-1].kind, stack[-1].shared, state.kind) != ("OrderedDict", False, "dict"):
                    raise Refused(f"It sets attributes of {stack[-1].kind}; {PLAIN}")
                stack[-1].size = _sizes([stack[-1], state])
            elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
                stack.append(_Made(name[6:].lower()))
            elif not (name == "STOP" or (name == "PROTO" and value == 2)):
                raise Refused(f"Its pickle uses {name}, which torch.save does not do.")

    def _storage(self, storage: str, kind: _Made, key: str, location: str, count: int) -> _Made:
        if self.records[f"data/{key}"] != count * _ITEM_BYTES[kind.kind]:
            raise Refused(f"It asks for {count:,} items of {kind.kind} from a record of another size.")
        if self.storages.setdefault(key, kind.kind) != kind.kind:
            raise Refused("It reads one record as two types.")
        return _Made("storage", items=[count])

    def _call(self, function: str, arguments: Sequence[Any]) -> _Made:
        kind = function.rpartition(" ")[2]
        if function == "collections OrderedDict" and not arguments:
            return _Made(kind)
        if function in ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"):
            storage, _, sizes, _, _, hooks, *_ = arguments
            if storage.kind != "storage" or hooks.kind != "OrderedDict" or hooks.size > 1:
                raise Refused("It rebuilds a tensor as torch.save does not do.")
            shape = [size for size in sizes.items if type(size) is int and 0 <= size < 2**63]
            stored = storage.items[0]
            if len(shape) < len(sizes.items) or len(shape) > 64 or math.prod(shape) > stored:
                raise Refused(
                    f"It holds a tensor of shape {printable(sizes.items, 100)} over {stored:,} stored "
                    "numbers: keep tensor.contiguous() of one that was expanded."
                )
            return _Made("tensor")
        if function == "torch._utils _rebuild_parameter" and arguments[2].size > 1:
            raise Refused("It rebuilds a parameter as torch.save does not do.")
        if function in ("torch._utils _rebuild_parameter", "torch._utils _rebuild_sparse_tensor"):
            return _Made("tensor", size=_sizes(arguments))
        if function in (
            "torch.serialization _get_layout",
            "torch device",
            "torch Size",
            "__builtin__ complex",
        ):
            self._copy(_sizes(arguments))
            return _Made(kind, size=_sizes(arguments))
        if function == "_codecs encode" and arguments[1] == "latin1":  # how bytes are written
            self._copy(len(arguments[0]))
            return _Made("bytes")
        if function in ("collections Counter", "__builtin__ set"):
            (content,) = arguments
            self._copy(content.size)
            if content.kind == "list":
                _check_keys(content.items)
            elif content.kind != "dict":
                raise Refused(f"It makes a {kind} of {content.kind}.")
            return _Made(kind, size=content.size)
        raise Refused(f"It calls {printable(function, 100)} in a way that torch.save does not.")

    def _copy(self, size: int) -> None:
        self.copied += size
        if self.copied > len(self.data):
            raise Refused("It copies one value over and over.")


def _known(name: str) -> _Made:
    module, _, own = name.partition(" ")
    dtype = module == "torch" and re.fullmatch(r"(u?int|float|bfloat|complex)\d{1,3}\w{0,12}|bool", own)
    if name == "__builtin__ bytes":
        raise Refused(
            "It holds empty bytes, b'', which torch.load does not read: keep None, or an empty text."
        )
    if not dtype and name not in _ITEM_BYTES and name not in _CALLS:
        raise Refused(f"It holds {printable(name.replace(' ', '.'), 200)}; {PLAIN}")
    return _Made(name)


_CALLS = {
    "collections OrderedDict",
    "collections Counter",
    "__builtin__ set",
    "__builtin__ complex",
    "_codecs encode",
    "torch Size",
    "torch device",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_sparse_tensor",
    "torch.serialization _get_layout",
}


def _sizes(items: Iterable[Any]) -> int:
    size = sum(each.size if isinstance(each, _Made) else 1 for each in items)
    if size > _MOST_VALUES:
        raise Refused(f"It holds more than {_MOST_VALUES:,} values: long lists belong in tensors.")
    return size


def _tuple(items: list[Any]) -> _Made:
    return _Made("tuple", 1 + _sizes(items), items)


def _grow(container: _Made, items: list[Any], *, keys: bool) -> None:
    if container.shared or container.kind not in (("dict", "OrderedDict") if keys else ("list",)):
        raise Refused(f"Its pickle adds to a {container.kind} as torch.save does not do.")
    if keys:
        _check_keys(items[::2])
    else:
        container.items = container.items or []  # one empty tuple serves all that stay empty
        container.items.extend(items)
    container.size = _sizes([container, *items])


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:  # other keys can be chosen so that looking one up takes as long as reading them all
        if isinstance(key, _Made) or (type(key) is int and abs(key) >= 2**63):
            raise Refused("It holds a dict or a set with keys other than texts and numbers of 64 bits.")
