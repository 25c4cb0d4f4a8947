"""Documents in a table of their own, named histories, queries, and tasks that there are."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data, tasks
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.writing import Imported, import_table

DOCUMENTS = [
    {"author": user, "id": f"d{i}", "day": f"2024-0{1 + i}-03", "title": f"title {i}", "body": f"body {i}"}
    for user in ("ann", "bob")
    for i in range(4)
]
QUESTIONS = [
    {"author": "ann", "id": "q1", "day": "2024-03-01", "input": "what?", "output": "this"},
    {"author": "bob", "id": "q2", "day": "2024-01-03", "input": "and?", "output": "that"},
]


def imported(
    out: Path, questions: Any = QUESTIONS, documents: Any = DOCUMENTS, *, task: str = "", **columns: Any
) -> tuple[Imported, list[Example]]:
    made = import_table(questions, out, Columns(**columns), documents=documents, task=task)
    return made, list(data.read(Benchmark(name="own", root=str(out))))


def shown(examples: list[Example]) -> list[list[str]]:
    return [[document.id for document in example.profile] for example in examples]


def test_a_question_sees_documents_of_its_user_that_were_there_before(tmp_path: Path) -> None:
    made, found = imported(tmp_path / "out", time="day")
    assert shown(found) == [["d0", "d1"], []]
    assert (made.questions, made.users, made.documents, made.without_history) == (2, 2, 8, 1)
    assert made.document_columns == Columns(
        user="author", time="day", id="id", document=("title", "body")
    )  # all that are no user, date or id
    assert found[0].profile[0].text == "title 0 body 0"
    assert found[0].profile[0].fields["body"] == "body 0"
    assert "no column of relevant ids (--relevant): recall is not measured" in made.notes


def test_columns_of_documents_may_be_called_otherwise(tmp_path: Path) -> None:
    renamed = [{"customer": d["author"], "text": d["body"], "date": d["day"]} for d in DOCUMENTS]
    made, found = imported(tmp_path / "out", documents=renamed, time="day", document=("text",))
    assert made.document_columns == Columns(user="customer", time="date", document=("text",))
    assert shown(found) == [["document-1", "document-2"], []]
    assert [d.text for d in found[0].profile] == ["body 0", "body 1"]


def test_without_dates_every_document_is_seen_and_that_is_said(tmp_path: Path) -> None:
    bare = [{key: value for key, value in d.items() if key != "day"} for d in DOCUMENTS]
    made, found = imported(tmp_path / "a", documents=bare, time="day")
    assert shown(found) == [["d0", "d1", "d2", "d3"]] * 2
    assert "no dates of documents: every question sees all documents of its user" in made.notes
    undated = [{key: value for key, value in q.items() if key != "day"} for q in QUESTIONS]
    made, found = imported(tmp_path / "b", questions=undated)
    assert shown(found) == [["d0", "d1", "d2", "d3"]] * 2
    assert "no dates of questions: every question sees all documents of its user" in made.notes


def test_history_and_query_and_relevant_ids_are_taken_as_named(tmp_path: Path) -> None:
    rows = [{**QUESTIONS[0], "saw": "d3, d0", "find": "needle", "gold": ["d0"]},
            {**QUESTIONS[1], "saw": "", "find": "", "gold": []}]  # fmt: skip
    made, found = imported(
        tmp_path / "out",
        rows,
        time="day",
        history="saw",
        query="find",
        relevant="gold",
        document=("title", "id"),
    )
    assert shown(found) == [["d3", "d0"], []]
    assert [example.query for example in found] == ["needle", "and?"]
    assert [example.relevant for example in found] == [(("d0",),), ()]
    assert found[0].profile[1].text == "title 0 d0"
    assert made.without_history == 1


def test_rows_may_name_earlier_rows_as_their_history(tmp_path: Path) -> None:
    rows = [{"user": "u", "id": f"r{i}", "input": "x", "output": f"y{i}", "saw": "r0" * (i == 2)}
            for i in range(3)]  # fmt: skip
    made, found = imported(tmp_path / "out", rows, None, history="saw")
    assert shown(found) == [[], [], ["r0"]]
    assert made.without_history == 2


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_what_is_counted_is_what_the_reader_sees(tmp_path: Path, dated: bool, apart: bool) -> None:
    """Any relevant id that is accepted is seen, and any that is seen is accepted."""
    draw = random.Random(int(dated) * 2 + apart)

    def row(number: int) -> dict[str, str]:
        date = {"time": f"2024-01-0{draw.randint(1, 4)}"} if dated else {}
        return {"user": draw.choice("abcde"), "id": str(number), "input": "i", "output": "o", **date}

    rows = [row(number) for number in range(24)]
    documents = [row(number) for number in range(12)] if apart else None
    made, found = imported(tmp_path / "out", rows, documents)
    assert made.without_history == sum(not example.profile for example in found) > 0
    visible = {example.id: {document.id for document in example.profile} for example in found}
    for number, one in enumerate(draw.sample(rows, 12)):
        named = [{**one, "gold": str(draw.randint(0, 23))} if r is one else {**r, "gold": ""} for r in rows]
        (gold,) = (r["gold"] for r in named if r["id"] == one["id"])
        if gold in visible[one["id"]]:
            imported(tmp_path / f"{number}", named, documents, relevant="gold")
        else:
            place = 1 + [r["id"] for r in rows].index(one["id"])
            with pytest.raises(UserError, match=f"row {place}, column 'gold': found '{gold}', which the q"):
                imported(tmp_path / f"{number}", named, documents, relevant="gold")


@pytest.mark.parametrize("name", ["lamp_2", "lamp_3", "lamp_4", "lamp_5", "lucid", "open_qa"])
def test_a_released_task_is_written_in_full(tmp_path: Path, name: str) -> None:
    task = tasks.released(name)
    documents = [{"user": "ann", "id": 1, **dict.fromkeys(task.fields, "x")}]
    imported(tmp_path / "out", documents=documents, user="author", task=name)
    found = data.task(Benchmark(name="own", root=str(tmp_path / "out")))
    assert {**vars(found), "name": ""} == {**vars(task), "name": ""}


def test_a_file_of_a_task_is_taken_as_it_stands(tmp_path: Path) -> None:
    text = '# mine\nanswer = "line"\n\n[prompt.own]\ninstruction = "Say so."\n'
    (tmp_path / "mine.toml").write_text(text)
    made, _ = imported(tmp_path / "out", task=str(tmp_path / "mine.toml"))
    assert (tmp_path / "out" / "task.toml").read_text() == text
    assert made.kind == "generation"


def test_faults_are_one_line(tmp_path: Path) -> None:
    def fault(message: str, *tables: Any, **columns: Any) -> None:
        with pytest.raises(UserError, match=r"^[^\n]*$") as error:
            imported(tmp_path / "out", *tables, **columns)
        assert message in str(error.value)
        assert not (tmp_path / "out").exists()

    fault("--document: found no column 'text' in the documents; they have author, id,", document=("text",))
    fault("--task: found no file and no task 'lamp4'; did you mean 'lamp_4'?", task="lamp4")
    fault(
        "--task lamp_5: prompt.own shows {abstract} of a document, which has title, body",
        time="day",
        task="lamp_5",
    )
    fault("row 2, column 'id': found 'd0' a second time", QUESTIONS, [DOCUMENTS[0]] * 2)
    fault("row 1, column 'title': found nothing", QUESTIONS, [{"author": "ann", "title": " ", "body": ""}])
    fault("row 1, column 'day': found 'soon', wanted a date", QUESTIONS, [{**DOCUMENTS[0], "day": "soon"}],
          time="day")  # fmt: skip
    fault("the documents: found none of the 2 users of column 'author' of the table", QUESTIONS,
          [{**DOCUMENTS[0], "author": "zoe"}])  # fmt: skip
    fault("found no column that says whose document it is among a; name it: --user", QUESTIONS, [{"a": 1}])
    saw = [{**QUESTIONS[0], "saw": "d0 d9"}]
    fault("row 1, column 'saw': found 'd9', no document of the user", saw, history="saw")
    fault("row 1, column 'saw': found 'd0', no earlier row of the user", [{**saw[0], "author": "a"}] * 1
          + [{**QUESTIONS[0], "id": "d0", "author": "a", "saw": ""}], None, history="saw")  # fmt: skip
    with pytest.raises(UserError, match="found both --task and --instruction"):
        import_table(QUESTIONS, tmp_path / "out", Columns(), "Say so.", documents=DOCUMENTS, task="own")


def lamp_as_tables(root: Path, folder: Path) -> list[str]:
    """LaMP-4's dev split as two CSV files, and the flags that import them."""
    questions = json.loads((root / "dev_questions.json").read_text())
    golds = {
        gold["id"]: gold["output"] for gold in json.loads((root / "dev_outputs.json").read_text())["golds"]
    }
    articles = {(q["user_id"], d["id"]): d for q in questions for d in q["profile"]}
    with (folder / "articles.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["user", "id", "date", "title", "text"])
        table.writeheader()
        table.writerows({**document, "user": user} for (user, _), document in articles.items())
    with (folder / "headlines.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["user", "id", "input", "query", "headline", "history"])
        table.writeheader()
        for q in questions:
            seen = " ".join(document["id"] for document in q["profile"])
            query = q["input"].partition("article:")[2].strip()
            of = {"user": q["user_id"], "id": q["id"], "input": q["input"]}
            table.writerow({**of, "query": query, "headline": golds[q["id"]], "history": seen})
    flags = "--user user --id id --input input --query query --output headline --history history"
    return [str(folder / "headlines.csv"), "--documents", str(folder / "articles.csv"), *flags.split(),
            "--document", "title", "text", "--task", "lamp_4"]  # fmt: skip


def test_lamp_through_tables_is_what_its_reader_reads(real_data: Path, tmp_path: Path) -> None:
    root = real_data / "LaMP_4_huffpost"
    flags = lamp_as_tables(root, tmp_path)
    assert main(["data", "import", *flags, "--out", str(tmp_path / "own")]) == 0
    wanted = {example.id: example for example in data.read(Benchmark(name="lamp_4", root=str(root)))}
    found = list(data.read(Benchmark(name="own", root=str(tmp_path / "own"))))
    assert len(found) == 199
    assert [example.id for example in found] == list(wanted)  # a sample is the same one
    for example in found:
        assert example == wanted[example.id]
