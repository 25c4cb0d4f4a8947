"""Streams equal what the standard library reads, faults are told apart, memory stays flat."""

import json
import os
import re
import tempfile
import tracemalloc
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.data import json_stream
from pbr_jax.types import UserError

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


def test_lines_read_as_the_standard_library_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    assert values(json_stream.lines(path)) == ROWS
    assert not json_stream.is_list(path)


def test_an_empty_list_holds_no_records(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("[]")
    assert values(json_stream.records(path)) == []


GOOD = json.dumps(ROWS).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:-5], f"record 1: the JSON is truncated at byte {len(GOOD) - 5}"),
        (GOOD[:-1], f"record 2: the JSON is truncated at byte {len(GOOD) - 1}"),
        (GOOD.replace(b'"b"', b'"\xff"'), "record 1: found bytes that are not UTF-8"),
        (GOOD.replace(b'"n": 1', b'"n": NaN'), "record 0: malformed JSON"),
        (GOOD + b"x", "record 2: malformed JSON"),
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
        (b'{"id": 1}\n{"id": ', "line 2 (record 1): malformed or truncated JSON at character"),
        (b'{"id": "\xff"}', "line 1 (record 0): found bytes that are not UTF-8 at byte 8"),
        (b'{"id": 1}\n[1]', "record 1: found a list, wanted an object"),
    ],
)
def test_a_bad_line_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        deque(json_stream.lines(path), maxlen=0)
    assert message in str(error.value)


def test_records_before_a_fault_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(GOOD[:-5])
    assert next(json_stream.records(path)).values == ROWS[0]


def test_a_small_file_holds_one_object(tmp_path: Path) -> None:
    path = tmp_path / "object.json"
    path.write_text("\ufeff" + json.dumps(ROWS[0]), encoding="utf-8")
    assert json_stream.load(path).values == ROWS[0]
    path.write_text("[]")
    with pytest.raises(UserError, match="found a list, wanted a JSON object"):
        json_stream.load(path)
    path.write_text('{"a": ')
    with pytest.raises(UserError, match="truncated JSON at character"):
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


ODD = ["a", "?", "\\", "\\ud83d", '"', "\ud83d", "\ude00", "\U0001f600", "\ufdd1", "é", "\n"]
PIECES = st.sampled_from(ODD)


@settings(max_examples=200)
@given(st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=4), st.integers(1, 40))
def test_halves_of_surrogate_pairs_are_read_wherever_the_file_is_cut(texts: list[str], size: int) -> None:
    """Against the standard library, which keeps them."""
    written = json.dumps([{"x": text} for text in texts])
    with tempfile.TemporaryFile() as file:
        file.write(written.encode())
        file.seek(0)
        source = json_stream._Halves(file)
        read = b"".join(iter(lambda: source.read(size), b""))
    wanted = [re.sub("[\ud800-\udfff]", "\ud800", entry["x"]) for entry in json.loads(written)]
    assert [json_stream._restored(entry["x"]) for entry in json.loads(read)] == wanted
    assert source.found == any("\ud800" in text for text in wanted)
