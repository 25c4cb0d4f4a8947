"""JSON, Parquet, compressed files and folders as they come: cases of `test_malformed`."""

import datetime
import decimal
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from malformed_text import GOOD, HEAD, JSONL, READ, Case, lines
from pyarrow import parquet


def columns(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: parquet.write_table(pa.table(arrays), path)


def twins(path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["ann"])] * 3, names=["user", "question", "question"])
    parquet.write_table(table, path)


def folder(**files: str | bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else content.encode()
            (path / name.replace("_dot_", ".")).write_bytes(raw)

    return make


def link(target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / "a.csv").write_text(GOOD)
        (path / "b.csv").symlink_to(target)

    return make


NESTED = pa.array([{"name": "ann"}, None])
MOMENTS = [datetime.datetime(2024, 1, 1, 12), datetime.datetime(2024, 1, 1, 13)]

FILE_CASES: dict[str, Case] = {
    # -- JSON
    "a list in .jsonl": Case(
        json.dumps(JSONL), "t.jsonl: record 0: found a list, wanted an object", "t.jsonl"
    ),
    "a broken line": Case(
        lines(*JSONL, '{"user": "ann", \n'),
        "t.jsonl: line 3 (record 2): malformed or truncated JSON",
        "t.jsonl",
    ),
    "NaN": Case(
        lines(JSONL[0], '{"user": "ann", "question": "x", "reply": NaN}\n'),
        [READ[0], ("ann", "x", None, 1)],
        "t.jsonl",
    ),
    "nested": Case(
        lines(JSONL[0], {"user": {"name": "ann"}, "question": "x"}),
        "t.jsonl: row 2, column 'user': found an object, wanted a text or a number",
        "t.jsonl",
    ),
    "a key twice": Case(
        lines(JSONL[0], '{"user": "ann", "user": "bo", "question": "x"}\n'),
        "t.jsonl: line 2 (record 1): found the key 'user' twice in one object",
        "t.jsonl",
    ),
    "a key twice in a list": Case(
        '[{"user": "ann", "question": "x", "question": "y"}]',
        "t.json: record 0: found the key 'question' twice",
        "t.json",
    ),
    "a list that ends early": Case(
        json.dumps(JSONL)[:-1], "t.json: record 2: the JSON is truncated", "t.json"
    ),
    "a deep value": Case("[" * 5000, "t.json: record 0: found lists or objects nested more than", "t.json"),
    "a number beyond all": Case(
        lines(JSONL[0], '{"user": "ann", "question": 1e999}\n'),
        "line 2 (record 1): found a number beyond",
        "t.jsonl",
    ),
    "an id as a float": Case(
        lines({"user": 12345678901234567890.0, "question": "x"}),
        "row 1, column 'user': found 1.2345678901234567e+19, which has lost digits",
        "t.jsonl",
    ),
    "numbers": Case(lines({"user": 7, "question": 1.5, "reply": 2.0}), [("7", "1.5", "2", 0)], "t.jsonl"),
    # -- Parquet
    "a parquet of text": Case("user,question\n", "t.parquet: cannot be read as Parquet", "t.parquet"),
    "a parquet without rows": Case(
        columns(user=pa.array([], pa.string()), question=pa.array([], pa.string())),
        "t.parquet: found no row",
        "t.parquet",
    ),
    "two columns of a parquet": Case(twins, "t.parquet: found two columns named 'question'", "t.parquet"),
    "a nested parquet": Case(
        columns(user=NESTED, question=["a", "b"]),
        "t.parquet: row 1, column 'user': found an object",
        "t.parquet",
    ),
    "a parquet of bytes": Case(
        columns(user=["ann"], question=pa.array([b"\xff"])),
        "t.parquet: row 1, column 'question': found bytes, wanted",
        "t.parquet",
    ),
    "decimals": Case(
        columns(user=["ann", "ann"], question=["a", "b"], reply=[decimal.Decimal("1.50"), None]),
        [("ann", "a", "1.50", 0), ("ann", "b", None, 1)],
        "t.parquet",
    ),
    "moments": Case(
        columns(user=["ann", "ann"], question=["a", "b"], time=pa.array(MOMENTS[::-1], pa.timestamp("us"))),
        [("ann", "b", None, 0), ("ann", "a", None, 1)],
        "t.parquet",
    ),
    "nanoseconds": Case(
        columns(
            user=["ann", "ann"],
            question=["a", "b"],
            time=pa.array([1706969100000000002, 1706969100000001001], pa.timestamp("ns")),
        ),
        [("ann", "a", None, 0), ("ann", "b", None, 1)],
        "t.parquet",
    ),
    "a day that Python has not": Case(
        columns(user=["ann"], question=["a"], time=pa.array([10**8], pa.date32())),
        "t.parquet: cannot be read as Parquet",
        "t.parquet",
    ),
    "categories": Case(
        columns(user=pa.array(["ann", "ann"]).dictionary_encode(), question=["a", "b"]),
        [("ann", "a", None, 0), ("ann", "b", None, 1)],
        "t.parquet",
    ),
    "large integers beside nothing": Case(
        columns(user=pa.array([2.0**60, None]), question=["a", "b"]),
        "t.parquet: row 1, column 'user': found 1.152921504606847e+18, which has lost digits",
        "t.parquet",
    ),
    # -- files and folders
    "a csv in gzip": Case(gzip.compress(GOOD.encode()), READ, "t.csv.gz"),
    "half a gzip": Case(
        gzip.compress(GOOD.encode())[:-9], "t.csv.gz: found damaged compressed data", "t.csv.gz"
    ),
    "another format in gzip": Case(
        gzip.compress(b"x"), "t.parquet.gz: found a file that ends in '.gz'", "t.parquet.gz"
    ),
    "capitals": Case(GOOD, READ, "T.CSV"),
    "a workbook": Case(b"PK\x03\x04", "t.xlsx: found a file that ends in '.xlsx', wanted .csv", "t.xlsx"),
    "a workbook as .csv": Case(b"PK\x03\x04\x14\x00\x06\x00\x08\x00", "t.csv: header: found a NUL character"),
    "no file": Case(lambda path: None, "t.csv: found no such file or folder"),
    "an empty folder": Case(folder(), "t: found no table in the folder", "t"),
    "two tables": Case(
        folder(a_dot_csv=GOOD, b_dot_tsv=(HEAD + "bo,2024-01-01,x,y\n").replace(",", "\t")),
        [*READ, ("bo", "x", "y", 0)],
        "t",
    ),
    "tables of different columns": Case(
        folder(a_dot_csv=GOOD, b_dot_csv="user,date,question\nann,2024-01-03,x\n"),
        "b.csv: found the columns user, date, question, and another file of the folder has date, question, ",
        "t",
    ),
    "hidden files": Case(folder(a_dot_csv=GOOD, _dot__a_dot_csv=b"\x00\x05\x16\x07"), READ, "t"),
    "a folder in a folder": Case(
        lambda path: [folder(a_dot_csv=GOOD)(path), (path / "b.csv").mkdir()], READ, "t"
    ),
    "a link to nowhere": Case(link("nowhere.csv"), "b.csv: found no file that can be read", "t"),
    "a pipe": Case(lambda path: os.mkfifo(path), "t.csv: found no file that can be read"),
    "an mbox of text": Case(GOOD, "t.mbox: found b'user,' at its start, wanted an mbox file", "t.mbox"),
    "mail without a date": Case(
        "From a\nFrom: ann@x.org\n\nhello\n", "t.mbox: message 1, header 'Date': found", "t.mbox"
    ),
}
