"""Headers of GGUF files: as the library reads them, and refused where they promise more than the file has."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.models import causal_lm, gguf_file, gguf_header, pretrained


def header(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def named(form: str, *numbers: int, room: int = 99) -> bytes:
    """Something called "k", what is said of it, and room behind it."""
    return struct.pack("<Qs", 1, b"k") + struct.pack(f"<{form}", *numbers) + bytes(room)


LIST = "IIQ"  # a list's type, its entries', their number
HOSTILE = {
    "1000000000 tensors are promised": header(tensors=10**9),
    "18446744073709551615 metadata fields are promised": header(keys=2**64 - 1),
    "9223372036854775808 bytes are promised": header(keys=1, rest=struct.pack("<Q", 2**63) + bytes(40)),
    "1000000000 entries of a list are promised": header(keys=1, rest=named(LIST, 9, 0, 10**9)),
    "2000000000 entries of a list are promised": header(keys=1, rest=named(LIST, 9, 8, 2 * 10**9)),
    "8388608 entries, want at most": header(keys=1, rest=named(LIST, 9, 0, 2**23, room=2**23)),
    "a list of values of type 9": header(keys=1, rest=named(LIST, 9, 9, 9)),
    "metadata of type 77": header(keys=1, rest=named("I", 77)),
    "field k stands there twice": header(keys=2, rest=named("IB", 0, 1, room=0) * 2),
    "ends at byte 4000000000000000": header(tensors=1, rest=named("IQQIQ", 2, 10**9, 10**9, 0, 0)),
    "ends at byte 9223372036854": header(tensors=1, rest=named("IQIQ", 1, 4, 0, 2**63)),
    "1000000000 dimensions": header(tensors=1, rest=named("I", 10**9)),
    "in blocks of 256": header(tensors=1, rest=named("IQIQ", 1, 33, 12, 0)),
    "version 9 of the format": header(version=9),
}


@pytest.mark.parametrize("found", HOSTILE)
def test_what_a_file_cannot_hold_is_refused_before_memory_is_taken(found: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(HOSTILE[found])
    with pytest.raises(UserError, match="cannot be read as GGUF"):
        gguf_file.read(path)  # whatever is imported is there afterwards
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=found):
            gguf_header.read(path)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_a_header_reads_as_the_librarys_reader_reads_it(weights: None) -> None:
    path = pretrained.locate("SmolLM2-135M-Instruct")
    found, reader = gguf_header.read(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert found.metadata == fields
    assert list(found.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        stored = found.tensors[tensor.name]
        assert stored.shape == tuple(reversed(tensor.shape.tolist()))
        assert stored.kind == tensor.tensor_type
        np.testing.assert_array_equal(gguf_header.values(found, stored), tensor.data)


@pytest.mark.parametrize("order", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def test_both_byte_orders_are_read(order: gguf.GGUFEndian, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", endianess=order)
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("texts", ["a", "é", ""])
    writer.add_float64("half", 0.5)
    writer.add_tensor("x", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = gguf_header.read(tmp_path / "model.gguf")
    assert found.metadata["numbers"] == [1, -2, 3]
    assert found.metadata["texts"] == ["a", "é", ""]
    assert found.metadata["half"] == 0.5
    np.testing.assert_array_equal(gguf_header.values(found, found.tensors["x"]), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("block_count", 10**9, "llama.block_count is 1000000000; a whole number from 1 to 16384"),
        ("embedding_length", 2**31, "embedding_length is 2147483648"),
        ("head_count", 0, "head_count is 0"),
        ("context_length", 2**32 - 1, "context_length is 4294967295"),
    ],
)
def test_sizes_that_no_model_has_are_refused(name: str, value: int, found: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    sizes = dict(block_count=1, context_length=64, embedding_length=32, feed_forward_length=32, head_count=2)
    for field, size in (sizes | {name: value}).items():
        getattr(writer, f"add_{field}")(size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tensor("token_embd.weight", np.ones((96, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=found):
        causal_lm.read_config(tmp_path / "model.gguf")
