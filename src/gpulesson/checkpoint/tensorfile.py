"""Files in the safetensors format: tensors and metadata, nothing that could run, and a digest of them.

Such a file has 8 bytes with the length of the header, a JSON header with each tensor's dtype, shape and
offsets, and the bytes of the tensors. The library ``safetensors`` reads it. It has no digest, so we add one
to the metadata: the SHA-256 of the other metadata, and of each tensor's name, dtype, shape and bytes, in the
order of the file. Other programs read the file as well.

The writer is ours: it needs no second copy of a GPU's tensors, and writes into the open file, with its lock
and permissions, which is synced at the end. (``save_file`` of 0.8.0 writes another file and renames it.)
"""

import ctypes
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from gpulesson._files import open_file, printable

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
MOST_HEADER = 2**22
"""Bytes of the header; the library would accept 25 times as many."""
_BLOCK = 2**20
_DIGEST = "content sha256"
_NO_DIGEST = "0" * 64


class Refused(ValueError):
    """A file, or what is to be written, is invalid; the message completes a sentence."""


@dataclass(frozen=True)
class TensorFile:
    """An open file: its metadata, its digest (None in a file of another program), and its tensors."""

    metadata: dict[str, str]
    digest: str | None
    _file: Any

    def read(self) -> dict[str, Tensor]:
        """Read all tensors to the CPU; none is returned if the digest is wrong."""
        return dict(self.verified())

    def verified(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, one in memory at a time; a wrong digest is an error at the end."""
        from safetensors import SafetensorError

        digest = _Digest(self.metadata)
        for name in self._file.offset_keys():
            try:
                tensor = self._file.get_tensor(name)
            # PyTorch's own: for an unknown dtype or an impossible shape
            except (SafetensorError, LookupError, AttributeError, RuntimeError, TypeError) as error:
                reason = printable(str(error).partition("\n")[0])
                raise Refused(f"its tensor {printable(name)} cannot be read ({reason})") from error
            digest.add(name, tensor)
            digest.update(memory_of(tensor))
            yield name, tensor
            del tensor  # before the next one is read
        if self.digest is not None and digest.hexdigest() != self.digest:
            raise Refused("its digest is not that of its content")


class _Digest:
    """The SHA-256 of metadata and tensors. Empty tensors come last, since the file does not order them."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._digest = hashlib.sha256(repr(sorted(metadata.items())).encode())
        self.update = self._digest.update
        self._empty: list[Any] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Add what the header says of a tensor; its bytes are to follow."""
        about = name, str(tensor.dtype), list(tensor.shape)
        if tensor.numel():
            self.update(repr(about).encode())
        else:
            self._empty.append(about)

    def hexdigest(self) -> str:
        self.update(repr(sorted(self._empty)).encode())
        return self._digest.hexdigest()


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a file and read its header; `Refused` if it is not a whole safetensors file.

    The library maps the file into memory while it reads the header. It does not map the tensors but reads
    them on demand, so that a file that was truncated meanwhile is an error.
    """
    from safetensors import SafetensorError, safe_open

    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_HEADER:
            raise Refused("it does not begin as a safetensors file does, with a header of 4 MiB at most")
        same = Path(f"/proc/self/fd/{file.fileno()}")  # on Linux: this very file, whatever has its name now
        try:
            opened = safe_open(same if same.exists() else path, "pt", backend="pread")
        except SafetensorError as error:
            raise Refused(f"it is not a whole safetensors file ({printable(error)})") from error
        with opened as content:
            metadata = dict(content.metadata() or {})
            yield TensorFile(metadata, metadata.pop(_DIGEST, None), content)


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the tensors, whose dtypes must be among `DTYPES`, and the metadata."""
    # elements of 8 bytes first, then of 4, …: so each tensor is aligned to its element size
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    entries: dict[str, Any] = {"__metadata__": {_DIGEST: _NO_DIGEST, **metadata}}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        place = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        entries[name] = place
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MOST_HEADER:
        raise Refused(
            f"the header of its {len(order):,} tensors needs {len(header):,} bytes, not 4 MiB at most"
        )
    file.write(len(header).to_bytes(8, "little") + header)
    digest = _Digest(metadata)
    for name in order:
        digest.add(name, tensors[name])
        view = memoryview(memory_of(tensors[name].detach().to("cpu").contiguous())).cast("B")
        for start in range(0, len(view), _BLOCK):  # hash what is still in the processor's cache
            file.write(view[start : start + _BLOCK])
            digest.update(view[start : start + _BLOCK])
    file.seek(8 + header.index(_NO_DIGEST.encode()))
    file.write(digest.hexdigest().encode())


def identity(tensor: Tensor) -> object:
    """Return a key that two tensors share if they are the same memory, as tied weights are."""
    place = tensor.device, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg()
    return (*place, tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)


def memory_of(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return b""
    memory: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # keeps it alive
    return memory
