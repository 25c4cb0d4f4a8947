"""Tables become data: the right reading, or one line with row and column."""

import csv
import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.writing import Imported, import_table

HEADER = ["customer", "created", "question", "reply"]
ROWS = [
    [f"c{i % 3}", f"2024-{1 + i // 3:02d}-07", f"Question {i}, is it?", f"Reply\n“{i}”"] for i in range(12)
]


def table(path: Path, rows: list[list[str]] = ROWS, header: list[str] = HEADER, **style: Any) -> Path:
    with path.open("w", newline="", encoding=style.pop("encoding", "utf-8")) as file:
        csv.writer(file, **style).writerows([header, *rows])
    return path


def examples(folder: Path) -> list[Example]:
    return list(data.read(Benchmark(name="own", root=str(folder))))


def imported(source: Any, out: Path, **columns: Any) -> tuple[Imported, list[Example]]:
    made = import_table(source, out, Columns(**columns))
    return made, examples(out)


def test_earlier_rows_are_the_history_of_later_ones(tmp_path: Path) -> None:
    shuffled = [ROWS[i] for i in np.random.default_rng(0).permutation(12)]
    made, found = imported(table(tmp_path / "t.csv", shuffled), tmp_path / "out")
    assert (made.questions, made.users, made.without_history, made.kind) == (12, 3, 3, "generation")
    assert (made.first, made.last) == ("2024-01-07", "2024-04-07")
    assert made.columns == Columns(user="customer", time="created", input="question", output="reply")
    assert len(found) == 12
    for example in found:
        number = int(re.findall(r"\d+", example.input)[0])
        assert example.target == f"Reply\n“{number}”"
        assert example.user_id == f"c{number % 3}"
        texts = [f"Question {i}, is it? Reply\n“{i}”" for i in range(number % 3, number, 3)]
        assert [document.text for document in example.profile] == texts
    task = data.task(Benchmark(name="own", root=str(tmp_path / "out")))
    assert task.prompt.own.document == ("date: {date}", "question: {question}", "reply: {reply}")
    assert task.document_target == "reply"


def objects() -> list[dict[str, Any]]:
    return [dict(zip(HEADER, row)) for row in ROWS]


def lines(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in objects()))
    return path


def listed(path: Path) -> Path:
    path.write_text(json.dumps(objects()))
    return path


def parquet(path: Path) -> Path:
    pd.DataFrame(objects()).to_parquet(path)
    return path


def in_parts(path: Path) -> Path:
    path.mkdir()
    table(path / "1.csv", ROWS[:5])
    table(path / "2.tsv", ROWS[5:], delimiter="\t")
    (path / "notes.txt").write_text("no table")
    return path


def frame(path: Path) -> Any:
    made = pd.DataFrame(objects())
    return made.assign(created=pd.to_datetime(made["created"]))


SOURCES = {
    "csv": lambda root: table(root / "t.csv"),
    "excel": lambda root: table(root / "t.csv", encoding="utf-8-sig", quoting=csv.QUOTE_ALL),
    "tsv": lambda root: table(root / "t.tsv", delimiter="\t"),
    "jsonl": lambda root: lines(root / "t.jsonl"),
    "json": lambda root: listed(root / "t.json"),
    "parquet": lambda root: parquet(root / "t.parquet"),
    "folder": lambda root: in_parts(root / "t"),
    "rows": lambda root: objects(),
    "frame": frame,
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_container_gives_the_same_questions(tmp_path: Path, name: str) -> None:
    _, wanted = imported(table(tmp_path / "wanted.csv"), tmp_path / "wanted")
    _, found = imported(SOURCES[name](tmp_path), tmp_path / "out")
    assert [(e.id, e.user_id, e.input, e.target) for e in found] == [
        (e.id, e.user_id, e.input, e.target) for e in wanted
    ]
    assert [[d.text for d in e.profile] for e in found] == [[d.text for d in e.profile] for e in wanted]


def test_without_dates_rows_count_in_the_order_of_the_file(tmp_path: Path) -> None:
    rows = [[user, text] for user, _, text, _ in ROWS]
    made, found = imported(table(tmp_path / "t.csv", rows, ["who", "asked"]), tmp_path / "out",
                           user="who", input="asked")  # fmt: skip
    assert [len(example.profile) for example in found] == [0, 1, 2, 3] * 3
    assert made.kind == "retrieval"
    assert [note.split(":")[0] for note in made.notes] == [
        "no column of dates", "no column of answers", "no column of relevant ids (--relevant)"]  # fmt: skip


def test_the_output_says_what_is_not_used_and_what_to_edit(tmp_path: Path) -> None:
    """Of a support table the user is the customer, whom the default prompt does not mean."""
    header, rows = ["Ticket No", *HEADER, "Priority"], [[f"#{i}", *row, "low"] for i, row in enumerate(ROWS)]
    rows[0][4] = "x" * 150
    text = import_table(table(tmp_path / "t.csv", rows, header), tmp_path / "out", Columns(), "Reply.").text()
    assert "\nnot used  Ticket No, Priority\n" in text
    assert "\nanswers   up to 150 characters, so max_new_tokens is 50\n" in text
    assert data.task(Benchmark(name="own", root=str(tmp_path / "out"))).max_new_tokens == 50
    shown = [line.removeprefix("prompt    ") for line in text.splitlines() if line.startswith("prompt")]
    assert [line.split(" = ")[0] for line in shown] == ["system", "instruction"]
    assert set(shown) <= set((tmp_path / "out" / "task.toml").read_text().splitlines())
    assert shown[1] == 'instruction = "Reply."'
    assert "not used" not in import_table(table(tmp_path / "u.csv"), tmp_path / "used").text()


@pytest.mark.parametrize("user_is", ["author", "recipient"])
def test_the_wording_follows_who_the_user_is_and_then_nothing_is_asked(tmp_path: Path, user_is: Any) -> None:
    source = table(tmp_path / "t.csv")
    made = import_table(source, tmp_path / "out", user_is=user_is)
    own = data.task(Benchmark(name="own", root=str(tmp_path / "out"))).prompt.own
    assert ("as that person would" in own.system) == (user_is == "author")
    assert own.instruction.startswith({"author": "Write", "recipient": "Answer this person"}[user_is])
    asks = "Do these two lines say who"
    assert asks not in made.text()
    assert asks in import_table(source, tmp_path / "unsaid").text()
    said = import_table(source, tmp_path / "said", instruction="Reply.", user_is=user_is)
    assert said.prompt == (made.prompt[0], 'instruction = "Reply."')


def test_a_wording_that_a_task_has_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    source, unknown = table(tmp_path / "t.csv"), "customer"
    with pytest.raises(UserError, match="both --task and --user-is"):
        import_table(source, tmp_path / "out", task="lamp_4", user_is="author")
    with pytest.raises(UserError, match="--user-is is 'customer'; wanted one of author, recipient"):
        import_table(source, tmp_path / "out", user_is=unknown)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "out").exists()


def test_a_stop_string_is_proposed_where_no_answer_has_it_and_works_when_it_is_taken(tmp_path: Path) -> None:
    for name, answer in (("plain", "A\nreply"), ("several", "Two\n\nparagraphs")):
        rows = [*ROWS[:-1], [*ROWS[-1][:3], answer]]
        import_table(table(tmp_path / f"{name}.csv", rows), tmp_path / name)
        file = tmp_path / name / "task.toml"
        assert data.task(Benchmark(name="own", root=str(file.parent))).stop == ()
        file.write_text(file.read_text().replace("# stop", "stop"))
        stop = data.task(Benchmark(name="own", root=str(file.parent))).stop
        assert stop == (("\n\n",) if name == "plain" else ())


def test_copies_of_rows_are_told(tmp_path: Path) -> None:
    told = re.compile(r"(\d+) rows repeat another of the same user")
    copies = [*ROWS, ROWS[3], ROWS[3], ROWS[7]]
    later, another = [["c0", "2025-01-07", *ROWS[3][2:]]], [["c9", *ROWS[3][1:]]]
    for rows, wanted in ((ROWS, []), ([*ROWS, *later, *another], []), (copies, ["3"])):
        made = import_table(table(tmp_path / f"{len(rows)}.csv", rows), tmp_path / f"out-{len(rows)}")
        assert [found[1] for note in made.notes if (found := told.match(note))] == wanted


def test_rows_without_what_is_measured_are_not_scored(tmp_path: Path) -> None:
    rows = [{"user": "u", "id": f"r{i}", "input": "x", "output": "y" * (i != 1)} for i in range(3)]
    _, found = imported(rows, tmp_path / "answers")
    assert [(e.target, e.scored) for e in found] == [("y", True), (None, False), ("y", True)]
    rows = [{"user": "u", "id": f"r{i}", "input": "x", "gold": "r0" * (i == 2)} for i in range(3)]
    made, found = imported(rows, tmp_path / "evidence", relevant="gold")
    assert made.kind == "retrieval"
    assert [(e.relevant, e.scored) for e in found] == [((), False), ((), False), ((("r0",),), True)]


@pytest.mark.parametrize(
    ("answers", "kind", "labels"),
    [
        (["yes", "no"], "classification", ("no", "yes")),
        (["5", "3", "10"], "rating", ("3", "5", "10")),
        ([f"own {i}" for i in range(12)], "generation", ()),
    ],
)
def test_few_answers_that_recur_are_labels(
    tmp_path: Path, answers: list[str], kind: str, labels: tuple[str, ...]
) -> None:
    rows = [[*row[:3], answers[i % len(answers)]] for i, row in enumerate(ROWS * 2)]
    imported(table(tmp_path / "t.csv", rows), tmp_path / "out")
    task = data.task(Benchmark(name="own", root=str(tmp_path / "out")))
    assert (task.kind, task.labels) == (kind, labels)


def test_relevant_ids_and_categories(tmp_path: Path) -> None:
    rows = [[f"t{i}", *row, f"t{i - 3}" if i > 2 else "", "ab"[i % 2]] for i, row in enumerate(ROWS)]
    path = table(tmp_path / "t.csv", rows, ["id", *HEADER, "evidence", "category"])
    _, found = imported(path, tmp_path / "out", relevant="evidence", document=("question",))
    assert {e.id: e.relevant for e in found}["t7"] == (("t4",),)
    assert {e.category for e in found} == {"a", "b"}
    assert {e.id: [d.text for d in e.profile] for e in found}["t5"] == ["Question 2, is it?"]


def test_rows_of_python_that_are_no_rows_are_faults(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 2: found a list, wanted a mapping"):
        imported([{"user": "a", "input": "b"}, []], tmp_path / "out")
    with pytest.raises(UserError, match="row 1, column 'input': found an object, wanted a text"):
        imported([{"user": "a", "input": {}}], tmp_path / "out")


def test_dates_and_numbers_of_python(tmp_path: Path) -> None:
    rows = [{"user": 1.0, "time": datetime.date(2024, 1, 1 + i), "input": i, "output": None if i else "x"}
            for i in range(3)]  # fmt: skip
    made, found = imported(rows, tmp_path / "out")
    assert [(e.user_id, e.input, e.target) for e in found] == [
        ("1", "0", "x"),
        ("1", "1", None),
        ("1", "2", None),
    ]
    assert made.without_answer == 2


def test_the_command_says_what_it_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "t.csv")
    command = ["data", "import", str(path), "--instruction", 'Say "so".', "--out", str(tmp_path / "out")]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "columns   user: customer, input: question, output: reply, time: created" in told
    assert "found     12 questions of 3 users, task of kind generation" in told
    assert "dates     2024-01-07 to 2024-04-07" in told
    assert told.count("example   ") == 3
    assert data.task(Benchmark(name="own", root=str(tmp_path / "out"))).prompt.own.instruction == 'Say "so".'
    assert (
        main(["data", "validate", "--benchmark.name", "own", "--benchmark.root", str(tmp_path / "out")]) == 0
    )


def test_objects_in_json_are_columns_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"by": {"name": f"u{i % 2}", "at": {"seconds": 1740816000 + i}}, "q": {"text": f"Q{i}"}, "a": f"A{i}"}
        for i in range(4)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"user": "by.name", "time": "by.at.seconds", "input": "q.text", "output": "a"}
    made, read = imported(tmp_path / "t.jsonl", tmp_path / "out", **columns)
    assert [(e.user_id, e.input, e.target) for e in sorted(read, key=lambda e: e.input)] == [
        (f"u{i % 2}", f"Q{i}", f"A{i}") for i in range(4)
    ]
    assert (made.first, made.last) == ("2025-03-01T08:00:00", "2025-03-01T08:00:03")
    with pytest.raises(UserError, match=r"row 1: found the column 'q.text' twice"):
        imported([{"user": "a", "q": {"text": "b"}, "q.text": "c"}], tmp_path / "twins")
    with pytest.raises(UserError, match=r"column 'q': found an object, wanted .*; name a part of it: q.text"):
        imported(tmp_path / "t.jsonl", tmp_path / "whole", **{**columns, "input": "q"})
    with pytest.raises(UserError, match=r"row 1, column 'q.text': found a list, wanted a text"):
        imported([{"user": "a", "q": {"text": ["b"]}}], tmp_path / "list", input="q.text")
