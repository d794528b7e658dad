"""Turn nested tensors and plain values into JSON and separate tensors, and back, exactly.

None, numbers, strings, lists, and dicts with strings as keys are ordinary JSON. What JSON lacks is an object
one of whose keys begins with ``$``, such as ``{"$tuple": [1, 2]}``, or ``{"$tensor": "model.weight"}`` for a
tensor, which is stored under that name. An object of any other class is refused on saving: reading it back
would mean running its code.
"""

import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson._files import printable
from gpulesson.checkpoint.tensorfile import DTYPES, Refused, identity, memory_of

MOST_TEXT = 2**22
"""Bytes of JSON in one piece."""
MOST_VALUES = 300_000
"""Values in it, which take half a second and some 40 MB of memory."""
_JSON = "checkpoint.json"
_DEEPEST = 100
_FEW = 200
"""Keys of one dict or set that are neither strings nor numbers."""


def pack(content: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a file for a dict: its own, by name, and the JSON of `encode` as one more."""
    text, tensors = encode(content)
    return {**tensors, _JSON: torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def unpack(tensors: dict[str, Tensor]) -> Any:
    """Return what was packed; `Refused` if it was not."""
    if _JSON not in tensors or (text := tensors.pop(_JSON)).dtype != torch.uint8:
        raise Refused(f"it has no {_JSON}")
    return decode(bytes(memory_of(text)), tensors)


def encode(content: dict[str, Any]) -> tuple[bytes, dict[str, Tensor]]:
    """Return the JSON of a dict and its tensors, named by their paths in it.

    Tensors that share memory exactly, such as tied weights, have one name.

    >>> text, tensors = encode({"model": {"bias": torch.zeros(2)}, "losses": [0.5, math.inf]})
    >>> text
    b'{"model":{"bias":{"$tensor":"model.bias"}},"losses":[0.5,{"$float":"inf"}]}'
    """
    encoder = _Encoder()
    plain = encoder.of_dict(content, ())
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
    _check_size(text)
    return text, encoder.tensors


def decode(text: bytes, tensors: dict[str, Tensor]) -> Any:
    """Return what was encoded; `Refused` if the JSON is not of `encode`'s form, or leaves a tensor out.

    >>> decode(*encode({"a": (1, 2.5), 3: {True}}))
    {'a': (1, 2.5), 3: {True}}
    """

    def of_object(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Refused("its JSON repeats a name")
        tag = next((name for name in found if name.startswith("$")), None)
        if tag is None:
            return found
        value = found.pop(tag)
        if tag == "$tensor":
            used.add(value)
            return _tensor(tensors[value], **found)
        written, read = _READ[tag]
        return read(_checked(value, written), **found)

    used: set[str] = set()
    _check_size(text)
    try:
        content = json.loads(
            text.decode(),
            object_pairs_hook=of_object,
            parse_constant=_no_number,
            parse_int=lambda digits: int(digits) if len(digits) <= 4000 else _no_number(digits),
        )
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise Refused("its JSON is not of the form that save_checkpoint writes") from error
    if used != tensors.keys():
        raise Refused("there are tensors that its JSON does not name")
    _check_depth(content)
    return content


def _check_size(text: bytes) -> None:
    """Raise `Refused` if this JSON is too long, or may hold too many values."""
    values = sum(text.count(mark) for mark in b",[{")
    if len(text) > MOST_TEXT or values > MOST_VALUES:
        raise Refused(
            f"it needs {len(text):,} bytes of JSON with {values:,} values, and at most {MOST_TEXT:,} and "
            f"{MOST_VALUES:,} are read: long lists of numbers belong in tensors"
        )


def _no_number(text: str) -> Any:
    raise Refused("its JSON has a number that save_checkpoint never writes")


class _Encoder:
    """Turns values into JSON and collects their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Any, str] = {}  # of the collected tensors
        self._values = 0

    def of(self, value: Any, way: tuple[Any, ...]) -> Any:
        self._values += 1
        if len(way) > _DEEPEST:
            raise Refused(f"{_place(way)} is nested {_DEEPEST} deep")
        if self._values > MOST_VALUES:  # also ends the walk through a list that contains itself
            raise Refused(f"it has more than {MOST_VALUES:,} values: long lists of numbers belong in tensors")
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if isinstance(value, Tensor):
            return self.of_tensor(value, way)
        if kind is list:
            return self.of_items(value, way)
        if kind is dict:
            return self.of_dict(value, way)
        mark = f"${kind.__name__}"
        if kind in (float, torch.dtype, torch.device):
            return {mark: str(value)}
        if kind is set:
            check_keys(value)
        if kind in (tuple, set, torch.Size):
            return {mark: self.of_items(value, way)}
        if kind is deque:
            return {mark: self.of_items(value, way), "maxlen": value.maxlen}
        if kind is Counter:
            return {mark: self.of_dict(value, way)}
        if kind is OrderedDict and not vars(value).keys() - {"_metadata"}:  # which a state_dict has
            known = {name: self.of(each, (*way, name)) for name, each in vars(value).items()}
            return {mark: self.of_dict(value, way), **known}
        raise Refused(
            f"{_place(way)} is {_described(value)}; only tensors and plain values (numbers, strings, "
            "lists, dicts) belong in a checkpoint"
        )

    def of_items(self, values: Any, way: tuple[Any, ...]) -> list[Any]:
        return [self.of(each, (*way, number)) for number, each in enumerate(values)]

    def of_dict(self, values: dict[Any, Any], way: tuple[Any, ...]) -> Any:
        if all(type(name) is str and not name.startswith("$") for name in values):
            return {name: self.of(each, (*way, name)) for name, each in values.items()}
        check_keys(values)
        pairs = [
            [self.of(name, (*way, f"the key {name!r}")), self.of(each, (*way, name))]
            for name, each in values.items()
        ]
        return {"$dict": pairs}

    def of_tensor(self, value: Tensor, way: tuple[Any, ...]) -> Any:
        plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if not plain or value.is_quantized or value.is_meta:
            raise Refused(
                f"{_place(way)} is {_described(value)}; only dense tensors with values can be saved"
            )
        key = identity(value)
        as_bytes = {} if value.dtype in DTYPES else {"dtype": str(value.dtype)}
        if key not in self._names:
            self._names[key] = name = self._new_name(way)
            value = value.detach()
            if as_bytes:  # safetensors lacks this dtype: store its bytes, as one more dimension
                value = value.resolve_conj().resolve_neg().contiguous().unsqueeze(-1).view(torch.uint8)
            self.tensors[name] = value
        return {"$tensor": self._names[key], **as_bytes}

    def _new_name(self, way: tuple[Any, ...]) -> str:
        name = whole = printable(".".join(map(str, way)))
        number = 1
        while name in self.tensors:
            number += 1
            name = f"{whole} ({number})"
        return name


def _place(way: tuple[Any, ...]) -> str:
    first, *rest = way
    return printable(f"{first}{''.join(f'[{each!r}]' for each in rest)}", 300)


def _described(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, Tensor):
        name = f"{str(value.layout).removeprefix('torch.')}, {value.dtype}, on {value.device.type}: {name}"
    return f"an object of the class {printable(name)}"


def check_keys(keys: Iterable[Any]) -> None:
    """Refuse more than a few keys of kinds whose hashes a file can make collide.

    Python compares all keys of one hash, so that a file of 3 MB could take minutes. The hashes of strings are
    randomized, and floats and ints below 2**60 rarely collide.
    """
    others = 0
    for key in keys:
        others += not (type(key) in (str, float, bool) or (type(key) is int and abs(key) < 2**60))
    if others > _FEW:
        raise Refused(
            f"a dict or set has {others} keys that are neither strings nor numbers, more than {_FEW}"
        )


def _check_depth(content: Any) -> None:
    """Refuse deeper nesting than `encode` writes: visiting it could exceed Python's recursion limit."""
    level: list[Any] = [content]
    for _ in range(_DEEPEST + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values(), *getattr(value, "__dict__", {}).values()]
            elif isinstance(value, list | tuple | set | deque):
                inner += value
        level = inner
    if level:
        raise Refused(f"its JSON is nested more than {_DEEPEST} deep")


def _checked(value: Any, kind: Any) -> Any:
    if type(value) is not kind:
        raise Refused(f"its JSON lacks a {kind.__name__} where save_checkpoint writes one")
    return value


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
        raise Refused("its JSON lacks pairs where save_checkpoint writes them")
    check_keys(key for key, _ in pairs)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refused("its JSON repeats a key")
    return found


def _size(values: list[Any]) -> torch.Size:
    if not all(type(value) is int and abs(value) < 2**63 for value in values):
        raise Refused("its JSON has a shape that does not consist of ints")
    return torch.Size(values)


def _ordered(values: dict[Any, Any], _metadata: Any = None) -> OrderedDict[Any, Any]:
    found = OrderedDict(values)
    if _metadata is not None:
        vars(found)["_metadata"] = _checked(_metadata, OrderedDict)
    return found


def _float(text: str) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise Refused("its JSON lacks a float where save_checkpoint writes one")
    return float(text)  # each NaN is a separate object, as keys of one dict may be


def _dtype(text: str) -> torch.dtype:
    return _checked(getattr(torch, text.removeprefix("torch.")), torch.dtype)  # type: ignore[no-any-return]


def _tensor(value: Tensor, dtype: str | None = None) -> Tensor:
    return value if dtype is None else value.view(_dtype(dtype)).squeeze(-1)


_READ: dict[str, tuple[type, Any]] = {
    "$float": (str, _float),
    "$tuple": (list, tuple),
    "$set": (list, lambda values: set(_dict([[value, None] for value in values]))),
    "$Size": (list, _size),
    "$deque": (list, lambda values, maxlen: deque(values, maxlen)),
    "$dict": (list, _dict),
    "$Counter": (dict, Counter),
    "$OrderedDict": (dict, _ordered),
    "$dtype": (str, _dtype),
    "$device": (str, torch.device),
}
"""By mark: the JSON type of its value, and how to read it. There are no other marks."""
