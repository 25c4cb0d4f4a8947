"""Tables as they come, and what is to be read of them: cases of `test_malformed`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
        GOOD, "t.tsv: found no column that says who wrote it among user,date,question,reply", "t.tsv"
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
