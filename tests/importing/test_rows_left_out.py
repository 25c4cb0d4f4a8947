"""The records of a table are the rows that come out and those that are left out, which are counted."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbr_jax import data, import_table
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark
from pbr_jax.importing.writing import Imported

HEADER = ("user", "date", "id", "question", "reply")
TEXT = st.text("ab é\u0301\u200b", max_size=4)
DATES = ("2024-01-01", "2024-01-02T10:00:00Z", "01/02/2024", "", "soon", "2024-02-30")
ROW = st.tuples(TEXT, st.sampled_from(DATES), st.sampled_from("pqrs"), TEXT, TEXT)


def separated(rows: list[tuple[str, ...]], path: Path, delimiter: str) -> Path:
    """Every fourth row has a cell too much."""
    text = io.StringIO()
    longer = [(*row, "x") if place % 4 == 3 else row for place, row in enumerate(rows)]
    csv.writer(text, delimiter=delimiter).writerows([HEADER, *longer])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def records(rows: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(HEADER, row)) for row in rows]


def lines(rows: list[tuple[str, ...]], path: Path) -> Path:
    """Every fourth line is no object or no JSON."""
    texts = [json.dumps(record) for record in records(rows)]
    texts = [("[1]", "{")[place % 8 == 3] if place % 4 == 3 else text for place, text in enumerate(texts)]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def parquet(rows: list[tuple[str, ...]], path: Path) -> Path:
    pd.DataFrame(rows, columns=list(HEADER), dtype=str).to_parquet(path)
    return path


MAKERS: dict[str, Callable[[list[tuple[str, ...]], Path], Any]] = {
    "csv": lambda rows, root: separated(rows, root / "t.csv", ","),
    "semicolons": lambda rows, root: separated(rows, root / "t.csv", ";"),
    "tsv": lambda rows, root: separated(rows, root / "t.tsv", "\t"),
    "jsonl": lambda rows, root: lines(rows, root / "t.jsonl"),
    "parquet": lambda rows, root: parquet(rows, root / "t.parquet"),
    "frame": lambda rows, root: pd.DataFrame(rows, columns=list(HEADER), dtype=str),
    "records": lambda rows, root: [*records(rows), None, ["user"]],
}


def attempted(*arguments: Any, **options: Any) -> Imported | str:
    """The import, or why it is refused."""
    try:
        return import_table(*arguments, **options)
    except UserError as error:
        return str(error)


def read(folder: Path) -> list[Example]:
    return list(data.read(Benchmark(name="own", root=str(folder))))


def counted(made: Imported) -> int:
    return sum(int(line.split()[0]) for line in made.left_out)


@pytest.mark.parametrize("form", MAKERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1, max_size=9), same_id=st.sampled_from(["refuse", "first", "last"]))
def test_what_goes_in_comes_out_or_is_counted(
    tmp_path_factory: pytest.TempPathFactory, form: str, rows: list[tuple[str, ...]], same_id: Any
) -> None:
    root = tmp_path_factory.mktemp("rows")
    table = MAKERS[form](rows, root)
    columns = dict(zip(("user", "time", "id", "input", "output"), HEADER))
    options: dict[str, Any] = {"columns": columns, "same_id": same_id}
    made = attempted(table, root / "out", skip_bad=True, **options)
    if isinstance(made, str):
        assert re.search("found no row|nobody has a history", made)
        return
    extra = 2 * (form == "records")
    assert made.questions == len(read(root / "out"))
    assert made.questions + counted(made) == len(rows) + extra
    told = (root / "out" / "left_out.txt").read_text().splitlines() if made.left_out else []
    assert told == list(made.left_out)
    faulty = any("an id that recurs" not in line for line in made.left_out)
    assert isinstance(attempted(table, root / "whole", **options), str) == faulty
    assert (root / "whole").exists() != faulty


ROWS = [
    ("ann", "2024-01-01", "1", "q1", "a1"),
    ("ann", "3/2/24", "2", "q2", "a2"),
    ("ann", "2024-01-03", "1", "q3", "a3"),
    ("", "2024-01-04", "4", "q4", "a4"),
    ("ann", "2024-01-05", "5", "", "a5"),
    ("bob", "later", "6", "q6", "a6"),
    ("bob", "2024-01-07", "7", "q7", "a7"),
    ("bob", "2024-01-08", "8", "q8", "a8"),
]


def table(path: Path, rows: list[tuple[str, ...]] = ROWS, header: tuple[str, ...] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_all_faults_are_told_at_once_and_may_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "import", str(table(tmp_path / "t.csv")), "--id", "id", "--time", "date"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.findall(r"row (\d)", told) == ["2", "3", "4", "5", "6"]
    assert "in all 2 rows without a date such as 2024-02-03" in told
    assert "--skip-bad" in told
    assert not (tmp_path / "out").exists()
    assert main([*words, "--skip-bad", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    left_out = [line for line in told.splitlines() if line.startswith("left out")]
    assert sum(int(line.split()[2]) for line in left_out) == 5
    assert {e.id for e in read(tmp_path / "out")} == {"1", "7", "8"}


def test_after_five_faults_the_rest_is_counted(tmp_path: Path) -> None:
    rows = [("ann", "no", str(i), "q", "a") for i in range(40)]
    with pytest.raises(UserError) as found:
        import_table(table(tmp_path / "t.csv", rows), tmp_path / "out", columns={"time": "date"})
    assert str(found.value).count("found 'no'") == 5
    assert "in all 40 rows without a date" in str(found.value)


@pytest.mark.parametrize(("keep", "wanted"), [("first", "q1"), ("last", "q3")])
def test_of_rows_with_one_id_one_is_kept(tmp_path: Path, keep: Any, wanted: str) -> None:
    rows = [row for row in ROWS if row[1].startswith("2024") and row[0] and row[3]]
    made = import_table(table(tmp_path / "t.csv", rows), tmp_path / "out", columns={"id": "id"}, same_id=keep)
    assert {e.id: e.input for e in read(tmp_path / "out")} == {"1": wanted, "7": "q7", "8": "q8"}
    number = {"first": 2, "last": 1}[keep]
    assert [line.split("; the first is ")[1] for line in made.left_out] == [f"{tmp_path}/t.csv: row {number}"]


def test_rows_that_name_what_is_left_out_are_left_out_too(tmp_path: Path) -> None:
    rows = [("a", "q0", ""), ("a", "q1", "0"), ("a", "q2", "1"), ("a", "q3", "9"), ("a", "q4", "3")]
    source = [{"user": u, "question": q, "id": str(i), "gold": g} for i, (u, q, g) in enumerate(rows)]
    options: dict[str, Any] = {"columns": {"relevant": "gold", "id": "id"}}
    with pytest.raises(UserError, match="row 4, column 'gold'"):
        import_table(source, tmp_path / "out", **options)
    made = import_table(source, tmp_path / "out", skip_bad=True, **options)
    assert [e.id for e in read(tmp_path / "out")] == ["0", "1", "2"]
    assert counted(made) == 2


def test_rows_of_json_are_counted_with_those_that_have_a_fault(tmp_path: Path) -> None:
    good = {"user": "ann", "question": "q"}
    (tmp_path / "t.jsonl").write_text("\n".join(["{", *map(json.dumps, [good, good, {**good, "user": ""}])]))
    with pytest.raises(UserError, match="row 4, column 'user': found nothing"):
        import_table(tmp_path / "t.jsonl", tmp_path / "out")


# -- how a table is read --------------------------------------------------------------------------------

HELPDESK = """\
Ticket ID;Requester;Created at;Subject;Description;Agent Reply
100;Zoë <z@x.eu>;03/04/2024 01:30 PM;Rückgabe;Wie geht die Rückgabe für 5 €?;Schicken Sie es zurück.
101;Zoë <z@x.eu>;04/04/2024 09:05 AM;Brief;“Wo” ist mein Brief?;Er ist unterwegs.
101;Zoë <z@x.eu>;04/04/2024 09:05 AM;Brief;“Wo” ist mein Brief?;Er ist unterwegs.
102;Bob;03/04/2024 12:10 AM;Hi;Can you help?;Yes.
103;Bob;05/04/2024 11:00 PM;Hi;And now?;Still yes.
104;Bob;;Hi;And then?;Yes.
"""


def test_a_helpdesk_table_needs_four_flags_and_no_names_of_columns(tmp_path: Path) -> None:
    source = tmp_path / "tickets.csv"
    source.write_text(HELPDESK, encoding="cp1252")
    words = ["data", "import", str(source), "--out", str(tmp_path / "out"), "--encoding", "cp1252"]
    words += ["--date-format", "%d/%m/%Y %I:%M %p", "--same-id", "first", "--skip-bad"]
    assert main(words) == 0
    found = {e.id: (e.user_id, e.input, e.target, len(e.profile)) for e in read(tmp_path / "out")}
    assert found == {
        "100": ("Zoë <z@x.eu>", "Wie geht die Rückgabe für 5 €?", "Schicken Sie es zurück.", 0),
        "101": ("Zoë <z@x.eu>", "“Wo” ist mein Brief?", "Er ist unterwegs.", 1),
        "102": ("Bob", "Can you help?", "Yes.", 0),
        "103": ("Bob", "And now?", "Still yes.", 1),
    }
    assert len((tmp_path / "out" / "left_out.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("cp1252", "5 € für “Zoë”"), ("shift_jis", "返品はできますか"), ("utf-16", "naïve")],
)
def test_an_encoding_is_read_that_is_named(tmp_path: Path, encoding: str, text: str) -> None:
    source = tmp_path / "t.csv"
    source.write_bytes(f"user,question\nann,{text}\nann,more\n".encode(encoding))
    import_table(source, tmp_path / "out", encoding=encoding)
    assert {e.input for e in read(tmp_path / "out")} == {text, "more"}
    if encoding != "utf-16":  # which its byte order mark names
        with pytest.raises(UserError, match=r"not UTF-8.*--encoding"):
            import_table(source, tmp_path / "without")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "cp9999"}, "--encoding: found no encoding 'cp9999'"),
        ({"encoding": "hex"}, "--encoding: found no encoding 'hex'"),
        ({"date_format": "%d/%m"}, "--date-format: found '%d/%m', wanted year, month and day"),
        ({"date_format": "day"}, "--date-format: found 'day', wanted year, month and day"),
        ({"same_id": "both"}, "--same-id is 'both'; wanted refuse, first or last"),
    ],
)
def test_what_no_table_can_be_read_with_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        import_table(table(tmp_path / "t.csv"), tmp_path / "out", **options)


@pytest.mark.parametrize(
    "names",
    [
        ("User ID", "Created at", "Question", "Answer"),
        ("customer_id", "created", "PROMPT", "completion"),
        ("  requester email", "Created-Time", "description", "Agent Reply"),
        ("CustomerId", "createdAt", "request", "Response "),
    ],
)
def test_columns_have_their_usual_names_in_any_spelling(tmp_path: Path, names: tuple[str, ...]) -> None:
    rows = [("ann", "2024-01-01", "q1", "a1"), ("ann", "2024-01-02", "q2", "a2")]
    made = import_table(table(tmp_path / "t.csv", rows, names), tmp_path / "out")
    given = made.columns
    assert (given.user, given.time, given.input, given.output) == tuple(name.strip() for name in names)


FORMS = (
    "%d/%m/%Y",
    "%d.%m.%Y %H:%M",
    "%m-%d-%y",
    "%d %B %Y",
    "%Y.%m.%d",
    "%A, %d. %b %Y",
    "%Y-%m-%d",
    "%d/%m/%Y %H:%M",
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(3)), st.dates(date(1990, 1, 1), date(2030, 1, 1)))
def test_a_column_of_dates_orders_the_rows_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, form: str, order: list[int], first: date
) -> None:
    """Rows of an export with the newest first would otherwise have histories from after the question."""
    root = tmp_path_factory.mktemp("dates")
    days = [first + timedelta(days=40 * place) for place in order]
    rows = [
        {"requester": "ann", "Created at": format(day, form), "question": f"q{place}", "id": str(place)}
        for place, day in zip(order, days)
    ]
    for name, reading in (("guessed", {}), ("named", {"date_format": form})):
        made = attempted(rows, root / name, **reading)
        if isinstance(made, str):
            assert name == "guessed"
            assert made.count("'Created at': found") == 3
            assert made.count("--date-format") == 1
        else:
            histories = {e.id: sorted(d.id for d in e.profile) for e in read(root / name)}
            assert histories == {"0": [], "1": ["0"], "2": ["0", "1"]}


def test_all_columns_that_are_missing_are_told_at_once() -> None:
    with pytest.raises(UserError, match=r"who wrote it or what was asked among .*--user .* and --input"):
        import_table([{"Kunde": "ann", "Frage": "q"}], "out")


# -- names ----------------------------------------------------------------------------------------------


@given(
    st.text("eéoa b", min_size=1, max_size=5).filter(str.strip),
    st.lists(st.sampled_from(["\u200b", "\ufeff", " ", "\u2060", "\t", "\xad"]), max_size=3),
    st.sampled_from(["NFC", "NFD"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_user_is_one_in_every_spelling(
    tmp_path_factory: pytest.TempPathFactory, name: str, around: list[str], form: Any
) -> None:
    root = tmp_path_factory.mktemp("names")
    name = unicodedata.normalize("NFC", name.strip())
    other = "".join([*around, unicodedata.normalize(form, name), *around])
    rows = [{"user": user, "question": f"q{i}", "reply": "a"} for i, user in enumerate((name, other, "zz"))]
    made = import_table(rows, root / "out")
    found = sorted((e.user_id, len(e.profile)) for e in read(root / "out"))
    assert found == sorted([(name, 0), (name, 1), ("zz", 0)])
    notes = [note for note in made.notes if "spelled in several ways" in note]
    assert len(notes) == (other != name)
    assert all(note.startswith("1 users") and repr(name) in note for note in notes)
