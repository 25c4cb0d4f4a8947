"""What a GGUF file says before its weights: metadata, and where each tensor lies.

Every count and length is compared with the file before memory is taken for it: the library's reader
trusts them. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_VERSIONS = (2, 3)
_MOST_ENTRIES = 4 << 20  # of all lists together; the largest vocabularies with their merges have a million
_MOST_DIMENSIONS = 4
_LEAST_INFO = 8 + 4 + 8 + 4 + 8  # bytes that a tensor's description takes at least
_ALIGNMENT = 32


class Stored(NamedTuple):
    """A tensor in the file: its type, its shape in row-major order, and the bytes it has."""

    kind: "GGMLQuantizationType"
    shape: tuple[int, ...]
    start: int
    size: int


class Header(NamedTuple):
    """`data` is the file itself, mapped and not read."""

    data: mmap.mmap
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]


def read(path: Path) -> Header:
    """Reads the header. ValueError where it is no GGUF or promises more than the file holds; OSError."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(data)
    if cursor.take(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version = cursor.number("I")
    if version & 0xFFFF == 0:  # of a machine with the other byte order
        cursor.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} of the format, want {' or '.join(map(str, _VERSIONS))}")
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    cursor.expect(tensors, _LEAST_INFO, "tensors")
    cursor.expect(keys, 8 + 4 + 1, "metadata fields")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        name = cursor.text()
        if name in metadata:
            raise ValueError(f"metadata field {name} stands there twice")
        metadata[name] = cursor.value(cursor.number("I"))
    return Header(data, metadata, _tensors(cursor, tensors, metadata))


def values(header: Header, tensor: Stored) -> np.ndarray:
    """The tensor as it is stored: numbers of its type, or uint8 blocks, rows of them [*rows bytes]."""
    kind = {"F64": "f8", "F32": "f4", "F16": "f2", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
    order = ">" if header.data[4:6] == b"\0\0" else "<"
    dtype = np.dtype(order + kind.get(tensor.kind.name, "u1"))
    values = np.frombuffer(header.data, dtype, tensor.size // dtype.itemsize, tensor.start)
    return values.reshape(*tensor.shape[:-1], -1)


def _tensors(cursor: "_Cursor", count: int, metadata: Mapping[str, Any]) -> dict[str, Stored]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r:.40}, want a power of two")
    tensors: dict[str, Stored] = {}
    for _ in range(count):
        name, dimensions = cursor.text(), cursor.number("I")
        if name in tensors:
            raise ValueError(f"tensor {name} stands there twice")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions, want at most {_MOST_DIMENSIONS}")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1] or (1,)
        kind = GGMLQuantizationType(cursor.number("I"))
        block, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % block or not all(shape):
            raise ValueError(f"tensor {name} has shape {shape}, in blocks of {block}")
        tensors[name] = Stored(kind, shape, cursor.number("Q"), math.prod(shape) // block * size)
    start = -(-cursor.place // alignment) * alignment
    for name, tensor in tensors.items():
        end = start + tensor.start + tensor.size
        if end > len(cursor.data):
            raise ValueError(f"tensor {name} ends at byte {end} of {len(cursor.data)}")
        tensors[name] = tensor._replace(start=start + tensor.start)
    return tensors


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place, self.order = data, 0, "<"
        self._entries = 0

    def expect(self, count: int, least: int, what: str) -> None:
        """ValueError unless so many things, of at least so many bytes each, can still follow."""
        left = len(self.data) - self.place
        if count * least > left:
            raise ValueError(f"{count} {what} are promised at byte {self.place} and {left} bytes are left")

    def take(self, count: int) -> bytes:
        self.expect(count, 1, "bytes")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, form: str) -> Any:
        [value] = struct.unpack(self.order + form, self.take(struct.calcsize("=" + form)))
        return value

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        """A metadata value: a number, a truth value, a text, or a list of such."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _LIST:
            raise ValueError(f"metadata of type {kind} at byte {self.place}")
        kind, count = self.number("I"), self.number("Q")
        form = _SCALARS.get(kind)
        if form is None and kind != _STRING:
            raise ValueError(f"a list of values of type {kind} at byte {self.place}")
        self.expect(count, struct.calcsize("=" + form) if form else 8, "entries of a list")
        self._entries += count
        if self._entries > _MOST_ENTRIES:
            raise ValueError(f"lists of {self._entries} entries, want at most {_MOST_ENTRIES} in all")
        if form is None:
            return [self.text() for _ in range(count)]
        whole = f"{self.order}{count}{form}"
        return list(struct.unpack(whole, self.take(struct.calcsize(whole))))
