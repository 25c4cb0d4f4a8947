"""Tables, files and folders as they come, and what is to be read of them: cases of `test_malformed`."""

import datetime
import decimal
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

Reading = list[tuple[str, str, str | None, int]]


class Case(NamedTuple):
    """What is imported, and the error's words, or for each question user, input, target and number of
    documents that it sees."""

    content: bytes | str | Callable[[Path], Any]
    wanted: str | Reading
    name: str = "t.csv"
    flags: tuple[str, ...] = ()


HEAD = "user,date,question,reply\n"
GOOD = HEAD + "ann,2024-01-01,why é?,so\nann,2024-01-02,and?,yes\n"
READ: Reading = [("ann", "why é?", "so", 0), ("ann", "and?", "yes", 1)]
JSONL = [
    {"user": "ann", "question": "why é?", "reply": "so"},
    {"user": "ann", "question": "and?", "reply": "yes"},
]
RELEVANT = "user,date,id,question,gold\n"
SEEN = ("--relevant", "gold")


def dated(*dates: str) -> str:
    return HEAD + "".join(f"ann,{date},q{i},r\n" for i, date in enumerate(dates))


def order(*numbers: int) -> Reading:
    """Questions by their numbers, each after the ones before."""
    return [("ann", f"q{number}", "r", place) for place, number in enumerate(numbers)]


def lines(*records: Any) -> str:
    return "".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records)


TEXT_CASES: dict[str, Case] = {
    # -- encodings
    "utf-8 with a mark": Case(GOOD.encode("utf-8-sig"), READ),
    "utf-16": Case(GOOD.encode("utf-16"), READ),
    "utf-16 without a mark": Case(GOOD.encode("utf-16-le"), "t.csv: header: found a NUL character"),
    "utf-16 cut in a character": Case(
        GOOD.encode("utf-16")[:-1], "row 2 or after: found bytes that are not UTF-16"
    ),
    "latin-1": Case(
        GOOD.encode("latin-1"), "t.csv: row 1, column 'question': found bytes that are not UTF-8"
    ),
    "half a character": Case(
        GOOD.encode() + b"ann,2024-01-03,x,\xe2\x82\n", "row 3, column 'reply': found bytes"
    ),
    "a NUL": Case(GOOD + "ann,2024-01-03,a\0b,x\n", "t.csv: row 3, column 'question': found a NUL"),
    "jsonl in utf-16": Case(
        lines(*JSONL).encode("utf-16"),
        "t.jsonl: line 1 (record 0): found bytes that are not UTF-8",
        "t.jsonl",
    ),
    "jsonl with a mark": Case(b"\xef\xbb\xbf" + lines(*JSONL).encode(), READ, "t.jsonl"),
    "half of a pair": Case(
        lines(*JSONL, '{"user": "ann", "question": "\\ud83d", "reply": "x"}\n'),
        [*READ, ("ann", "?", "x", 2)],
        "t.jsonl",
    ),
    # -- separators, quotes and ends of lines
    "semicolons": Case(GOOD.replace(",", ";"), READ),
    "tabs in .csv": Case(GOOD.replace(",", "\t"), READ),
    "commas in .tsv": Case(
        GOOD,
        "t.tsv: found no column that says who wrote it or what was asked among user,date,question,reply",
        "t.tsv",
    ),
    "carriage returns alone": Case(GOOD.replace("\n", "\r"), READ),
    "carriage returns and line feeds": Case(GOOD.replace("\n", "\r\n"), READ),
    "no line end at the end": Case(GOOD.rstrip(), READ),
    "an open quote": Case(
        HEAD + 'ann,2024-01-01,"why,so\n' * 2, "t.csv: row 1: found a cell that cannot be read"
    ),
    "doubled quotes": Case(HEAD + 'ann,2024-01-01,"say ""x""",so\n', [("ann", 'say "x"', "so", 0)]),
    "a quote behind a quote": Case(
        HEAD + 'ann,2024-01-01,"say" x,so\n', "t.csv: row 1: found a cell that cannot be read"
    ),
    "a quote inside": Case(HEAD + 'ann,2024-01-01,5" wide,so\n', [("ann", '5" wide', "so", 0)]),
    "line ends in quotes": Case(HEAD + 'ann,2024-01-01,"a\nb\r\nc",so\n', [("ann", "a\nb\r\nc", "so", 0)]),
    "separators in quotes": Case(HEAD + 'ann,2024-01-01,"a,b;c",so\n', [("ann", "a,b;c", "so", 0)]),
    "a separator too many": Case(
        GOOD + "ann,2024-01-03,a,b,c\n", "t.csv: row 3 (line 4): found 5 cells, want 4"
    ),
    "a huge cell": Case(HEAD + f"ann,2024-01-01,{'x' * 300_000},so\n", [("ann", "x" * 300_000, "so", 0)]),
    "a cell that never ends": Case(
        HEAD + 'ann,2024-01-01,"' + "x y\n" * (5 << 20), "t.csv: row 1: found a cell that cannot be read"
    ),
    "a line that never ends": Case(
        "x" * (17 << 20), "t.csv: row 1: found a cell that cannot be read (a line of more than"
    ),
    # -- columns
    "empty": Case("", "t.csv: found no header"),
    "a header alone": Case(HEAD, "t.csv: found no row, wanted at least one"),
    "no column of users": Case(
        "x,question\na,b\n",
        "t.csv: found no column that says who wrote it among x, question; name it: --user",
    ),
    "a wrong flag": Case(
        GOOD, "t.csv: --user: found no column 'usr'; did you mean 'user'?", flags=("--user", "usr")
    ),
    "one column for both": Case(
        GOOD, "found one column 'reply' for both", flags=("--input", "reply", "--output", "reply")
    ),
    "two columns of one name": Case(
        "user,question,question\na,b,c\n", "t.csv: found two columns named 'question'"
    ),
    "columns without a name": Case(
        "user,question,,\nann,a,,\nann,b,,\n", [("ann", "a", None, 0), ("ann", "b", None, 1)]
    ),
    "spaces round names and users": Case(
        "user , question\n ann,a\nann ,b\n", [("ann", "a", None, 0), ("ann", "b", None, 1)]
    ),
    "a line end in a name": Case(
        'user,"the\nquestion"\nann,a\n',
        "found a column named 'the\\nquestion', wanted no braces",
        flags=("--input", "the\nquestion"),
    ),
    "braces in a name": Case(
        "user,question {de}\nann,a\n",
        "found a column named 'question {de}'",
        flags=("--input", "question {de}"),
    ),
    "a column text": Case(
        "user,text,question\nann,t,a\nann,u,b\n", [("ann", "a", "t", 0), ("ann", "b", "u", 1)]
    ),
    "a document date": Case(GOOD, READ, flags=("--document", "date", "reply")),
    # -- users, ids and rows
    "a user a row": Case(
        "user,question\na,x\nb,y\nc,z\n", "t.csv: column 'user': found 3 users in as many rows"
    ),
    "no user": Case(GOOD + " ,2024-01-03,a,b\n", "t.csv: row 3, column 'user': found nothing"),
    "no question": Case(GOOD + "ann,2024-01-03, ,b\n", "t.csv: row 3, column 'question': found nothing"),
    "an answer of spaces": Case(GOOD + "ann,2024-01-03,a, \n", [*READ, ("ann", "a", None, 2)]),
    "a document of nothing": Case(
        GOOD + "ann,2024-01-03,a,\nann,2024-01-04,b,c\n",
        [*READ, ("ann", "a", None, 2), ("ann", "b", "c", 2)],
        flags=("--document", "reply"),
    ),
    "an id twice": Case(
        "user,id,question\nann,7,a\nann,8,b\nann,7,c\n",
        "t.csv: row 3, column 'id': found '7' a second time",
        flags=("--id", "id"),
    ),
    "an id that a row without one gets": Case(
        "user,id,question\nann,row-2,a\nann,,b\n",
        "row 2, column 'id': found 'row-2' a second time",
        flags=("--id", "id"),
    ),
    "an id of spaces": Case(
        "user,id,question\nann,7,a\nann,  ,b\n",
        [("ann", "a", None, 0), ("ann", "b", None, 1)],
        flags=("--id", "id"),
    ),
    "control characters": Case(
        HEAD + "an\x1bn,2024-01-01,\x07why,so\x7f\n", [("an\x1bn", "\x07why", "so\x7f", 0)]
    ),
    "labels with spaces": Case(
        HEAD + "".join(f"ann,2024-01-{i:02d},q,{'ab'[i % 2]}{' ' * (i % 3)}\n" for i in range(1, 11)),
        [("ann", "q", "ab"[i % 2], i - 1) for i in range(1, 11)],
    ),
    # -- relevant ids
    "relevant": Case(
        RELEVANT + "ann,2024-01-01,a,x,\nann,2024-01-02,b,y,a\n",
        [("ann", "x", None, 0), ("ann", "y", None, 1)],
        flags=SEEN,
    ),
    "relevant of a later row": Case(
        RELEVANT + "ann,2024-01-01,a,x,b\nann,2024-01-02,b,y,\n",
        "t.csv: row 1, column 'gold': found 'b'",
        flags=SEEN,
    ),
    "relevant of the same day": Case(
        RELEVANT + "ann,2024-01-01,a,x,\nann,2024-01-01,b,y,a\n",
        "t.csv: row 2, column 'gold': found 'a'",
        flags=SEEN,
    ),
    # -- dates
    "dates of three kinds": Case(dated("2024-02-03", "01.02.2024", "2 February 2024"), order(1, 2, 0)),
    "a date that may be two": Case(
        dated("2024-02-03", "03/04/2024"),
        "t.csv: row 2, column 'date': found '03/04/2024', wanted a date such as",
        flags=("--time", "date"),
    ),
    "seconds and milliseconds": Case(dated("1706969100", "1706969000000", "1706968900.5"), order(2, 1, 0)),
    "dates and seconds": Case(dated("2024-02-04", "1706832000"), order(1, 0)),
    "time zones": Case(
        dated("2024-02-03T12:00:00+00:00", "2024-02-03T12:00:00+05:30", "2024-02-03T06:31:00Z"),
        order(1, 2, 0),
    ),
    "a zone's name": Case(
        dated("2024-02-03T12:00:00Z", "2024-02-03 12:00 CET"),
        "row 2, column 'date': found '2024-02-03 12:00 CET'",
        flags=("--time", "date"),
    ),
    "a date that is missing": Case(
        dated("2024-02-28", ""), "row 2, column 'date': found ''", flags=("--time", "date")
    ),
    "a number too long": Case(
        dated("2024-02-28", "9" * 5000), "row 2, column 'date': found '99999", flags=("--time", "date")
    ),
    "years and days": Case(
        dated("2025", "2024-02-03", "2024"),
        [("ann", "q2", "r", 0), ("ann", "q1", "r", 0), ("ann", "q0", "r", 2)],
    ),
}


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
        "From a\nFrom: ann@x.org\n\nhello\n", "without a date that can be read; the first is", "t.mbox"
    ),
}
