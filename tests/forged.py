"""Take safetensors files apart and put them together with a right digest: written without the package."""

from __future__ import annotations

import hashlib
import json
import struct
from contextlib import suppress
from typing import Any

DIGEST = "content sha256"
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def take_apart(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a file, and the bytes of its tensors."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def put_together(header: dict[str, Any] | bytes, body: bytes) -> bytes:
    """Make a file of any header and any bytes; where the header has a digest, it is put right."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):  # it is no header
        read = json.loads(raw)
        raw = raw.replace(read["__metadata__"][DIGEST].encode(), digest_of(read, body).encode())
    return struct.pack("<Q", len(raw)) + raw + body


def digest_of(header: dict[str, Any], body: bytes) -> str:
    """Return the digest that belongs to this header and these bytes of tensors."""
    texts = sorted((name, text) for name, text in header["__metadata__"].items() if name != DIGEST)
    digest = hashlib.sha256(repr(texts).encode())
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    empty = []
    for name, entry in sorted(entries, key=lambda each: each[1]["data_offsets"]):
        about = (name, f"torch.{DTYPES[entry['dtype']]}", entry["shape"])
        if content := body[slice(*entry["data_offsets"])]:
            digest.update(repr(about).encode() + content)
        else:
            empty.append(about)
    digest.update(repr(sorted(empty)).encode())
    return digest.hexdigest()


def json_of(content: bytes) -> bytes:
    """Return the JSON of a checkpoint."""
    header, body = take_apart(content)
    begin, end = header["checkpoint.json"]["data_offsets"]
    return body[begin:end]


def with_json(content: bytes, text: bytes) -> bytes:
    """Make a checkpoint with other JSON, which is the last of its tensors."""
    header, body = take_apart(content)
    begin, end = header["checkpoint.json"]["data_offsets"]
    assert end == len(body) or all(
        each["data_offsets"][0] <= begin for name, each in header.items() if name != "__metadata__"
    )
    change = len(text) - (end - begin)
    for name, each in header.items():
        if name != "__metadata__" and each["data_offsets"][0] >= end:
            each["data_offsets"] = [place + change for place in each["data_offsets"]]
    header["checkpoint.json"] |= {"shape": [len(text)], "data_offsets": [begin, begin + len(text)]}
    return put_together(header, body[:begin] + text + body[end:])
