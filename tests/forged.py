"""Take safetensors files apart and put them together with a right digest: written without the package."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

DIGEST = b'"sha256":"'


def take_apart(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a file, and the bytes of its tensors."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def put_together(header: dict[str, Any] | bytes, body: bytes) -> bytes:
    """Make a file of any header and any bytes; where the header has a digest, it is put right."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    place = raw.find(DIGEST) + len(DIGEST)
    if place >= len(DIGEST):
        zeros = raw[:place] + b"0" * 64 + raw[place + 64 :]
        whole = struct.pack("<Q", len(raw)) + zeros + body
        raw = zeros[:place] + hashlib.sha256(whole).hexdigest().encode() + zeros[place + 64 :]
    return struct.pack("<Q", len(raw)) + raw + body


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
