"""Streams equal what the standard library reads, faults are told apart, memory stays flat."""

import io
import json
import os
import tempfile
import tracemalloc
from collections import deque
from json import JSONDecodeError
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.data import json_stream

ROWS = [
    {"id": "a", "n": 1, "f": 0.5, "s": 'é "quoted" 😀 \u2028'},
    {"id": "b", "deep": [{"x": [None, True]}]},
]


def values(stream) -> list:
    return [record.values for record in stream]


@pytest.mark.parametrize("options", [{}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}])
@pytest.mark.parametrize("start", ["", "\n  ", "\ufeff"])
def test_a_list_reads_as_the_standard_library_reads_it(tmp_path: Path, options: dict, start: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(start + json.dumps(ROWS, **options), encoding="utf-8")
    assert values(json_stream.records(path)) == ROWS
    assert json_stream.is_list(path)


GOOD = json.dumps(ROWS).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:-5], f"record 1: the JSON is truncated at byte {len(GOOD) - 5}"),
        (GOOD[:-1], f"record 2: the JSON is truncated at byte {len(GOOD) - 1}"),
        (GOOD.replace(b'"b"', b'"\xff"'), "record 1: found bytes that are not UTF-8"),
        (GOOD.replace(b'"n": 1', b'"n": nan'), "record 0: malformed or truncated JSON"),
        (GOOD.replace(b"}, {", b"} {"), "record 1: malformed or truncated JSON (Expecting ',' delimiter)"),
        (GOOD[:-1] + b",]", "record 2: malformed or truncated JSON"),
        ('["é'.encode()[:-1], "record 0: the JSON is truncated at byte 3"),
        (GOOD + b"x", "record 2: malformed or truncated JSON"),
        (b'{"id": "a"}', "found an object, wanted a JSON list"),
        (b'"text"', "found a string, wanted a JSON list"),
        (b"", "found an empty file, wanted a JSON list"),
        (json.dumps(ROWS).encode("utf-16"), "found bytes that are not UTF-8, wanted a JSON list"),
        (b"[[1]]", "record 0: found a list, wanted an object"),
    ],
)
def test_a_bad_list_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        deque(json_stream.records(path), maxlen=0)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    assert "quoted" not in str(error.value)  # the data itself is not repeated


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": 1}\n{"id": ', "line 2 (record 1): malformed or truncated JSON (Expecting value at"),
        (b'{"id": "\xff"}', "line 1 (record 0): found bytes that are not UTF-8"),
        (b'{"id": 1}\n[1]', "record 1: found a list, wanted an object"),
    ],
)
def test_a_bad_line_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        deque(json_stream.lines(path), maxlen=0)
    assert message in str(error.value)


class Counting(io.BytesIO):
    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read(size)


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\t\r\n"])
def test_blanks_by_the_megabyte_are_read_in_few_steps(tmp_path: Path, blank: bytes) -> None:
    blanks = blank * (4_000_000 // len(blank))
    for content, first in ((blanks + b"[1]", b"["), (blanks, b"")):
        file = Counting(content)
        assert json_stream._first_byte(file) == first
        assert file.reads < 100
        assert file.tell() == 0
    path = tmp_path / "blank.jsonl"
    path.write_bytes(blanks + b'\n{"a": 1}\n' + blanks + b'\n{"a": 2}')
    assert values(json_stream.lines(path)) == [{"a": 1}, {"a": 2}]
    path.write_bytes(blanks + b"[" + blanks + b'{"a": 1}' + blanks + b"]" + blanks)
    assert values(json_stream.records(path)) == [{"a": 1}]


def test_a_small_file_holds_one_object(tmp_path: Path) -> None:
    path = tmp_path / "object.json"
    path.write_text("\ufeff" + json.dumps(ROWS[0]), encoding="utf-8")
    assert json_stream.load(path).values == ROWS[0]
    path.write_text("[]")
    with pytest.raises(UserError, match="found a list, wanted a JSON object"):
        json_stream.load(path)
    path.write_text('{"a": ')
    with pytest.raises(UserError, match=r"truncated JSON .* at character"):
        json_stream.load(path)


def test_a_missing_or_unreadable_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found no such file"):
        json_stream.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        json_stream.load(tmp_path)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    row = json.dumps({"id": "q", "profile": [{"text": "words " * 20, "id": str(i)} for i in range(400)]})
    with path.open("w") as file:
        file.write("[" + row)
        for _ in range(600):
            file.write("," + row)
        file.write("]")
    size = os.path.getsize(path)
    assert size > 35e6
    tracemalloc.start()
    try:
        count = sum(1 for _ in json_stream.records(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 601
    assert peak < 2e6  # a record is 60 kB of text


ODD = ["a", "?", "\\", "\\ud83d", '"', "\ud83d", "\ude00", "\U0001f600", "é", "\n", "]", "{"]
TEXTS = st.lists(st.sampled_from(ODD), max_size=12).map("".join)
LEAVES = TEXTS | st.integers() | st.integers(10**18, 10**40) | st.floats() | st.none() | st.booleans()
ENTRIES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def holding(content: bytes) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.seek(0)
    return file


@settings(max_examples=200)
@given(st.lists(ENTRIES, max_size=4), st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_values_are_the_standard_librarys_wherever_the_file_is_cut(
    entries: list, size: int, ascii: bool, indent: int | None
) -> None:
    written = json.dumps(entries, ensure_ascii=ascii, indent=indent).encode("utf-8", "replace")
    with holding(written) as file:
        read = list(json_stream._Source(file, size).values())
    assert read == json.loads(written, parse_constant=lambda _: None)


@settings(max_examples=100)
@given(st.lists(ENTRIES, min_size=1, max_size=3), st.integers(1, 40), st.data())
def test_a_truncated_list_ends_in_an_error_wherever_the_file_is_cut(
    entries: list, size: int, data: st.DataObject
) -> None:
    written = json.dumps(entries, ensure_ascii=False).encode("utf-8", "replace")
    end = data.draw(st.integers(1, len(written) - 1))
    with holding(written[:end]) as file, pytest.raises((EOFError, JSONDecodeError)):
        deque(json_stream._Source(file, size).values(), maxlen=0)


BARE = b'[{"id": 17446744073709551615, "n": NaN, "deep": [{"x": [-Infinity, Infinity]}], "s": "NaN nan"}]'


@pytest.mark.parametrize("form", ["list", "line", "object"])
def test_long_integers_stand_as_they_are_and_what_is_no_number_is_null(tmp_path: Path, form: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(BARE if form == "list" else BARE[1:-1])
    read = {"list": json_stream.records, "line": json_stream.lines, "object": lambda p: [json_stream.load(p)]}
    (found,) = values(read[form](path))
    wanted = {"id": 17446744073709551615, "n": None, "deep": [{"x": [None, None]}], "s": "NaN nan"}
    assert found == wanted
