"""LongLaMP's rows in every container they come in."""

import json
import math
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark

HISTORIES: dict[str, list[dict[str, Any]]] = {
    "longlamp_abstract": [
        {"id": 7, "title": "On trees", "abstract": "Trees grow.", "year": 2009},
        {"id": 8, "title": "On bushes", "abstract": "Bushes do.", "year": 2011},
    ],
    "longlamp_review": [
        {"overall": 2.0, "summary": "Bad", "description": "A lamp", "reviewText": "It broke."},
        {"overall": 5.0, "summary": "Good", "description": "A bulb", "reviewText": "It shines."},
    ],
    "longlamp_topic": [
        {"id": "x", "author": "ann", "summary": "A trip", "content": "We went."},
        {"id": "y", "author": "ann", "summary": "A meal", "content": "We ate."},
    ],
}
USERS = {"longlamp_abstract": "name", "longlamp_review": "reviewerId", "longlamp_topic": "author"}
TEXTS = {
    "longlamp_abstract": ["On trees Trees grow.", "On bushes Bushes do."],
    "longlamp_review": ["Bad A lamp It broke.", "Good A bulb It shines."],
    "longlamp_topic": ["A trip We went.", "A meal We ate."],
}
FOLDERS = {
    "longlamp_abstract": "abstract_generation_user",
    "longlamp_review": "product_review_user",
    "longlamp_topic": "topic_writing_temporal",
}


def rows(task: str, count: int = 2) -> list[dict[str, Any]]:
    text = "Write about the title items: 1. oak 2. items: more"
    return [
        {USERS[task]: f"user{i}", "input": text, "output": f"long {i}", "profile": HISTORIES[task]}
        for i in range(count)
    ]


def as_columns(row: dict[str, Any]) -> dict[str, Any]:
    profile = {key: [entry[key] for entry in row["profile"]] for key in row["profile"][0]}
    return {**row, "profile": profile}


def write(path: Path, values: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.Table.from_pylist(values), path, row_group_size=2)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, values)))
    else:
        path.write_text(json.dumps(values))


def examples(task: str, root: Path, split: str = "dev") -> list[Example]:
    return list(data.read(Benchmark(name=task, root=str(root), split=split)))


@pytest.mark.parametrize("task", HISTORIES)
@pytest.mark.parametrize(
    "name", ["val.jsonl", "validation.json", "dev.parquet", "data/val-00000-of-00001.parquet", "{}/val.jsonl"]
)
def test_every_container_gives_the_same_examples(tmp_path: Path, task: str, name: str) -> None:
    write(tmp_path / name.format(FOLDERS[task]), rows(task))
    first, second = examples(task, tmp_path)
    whole = rows(task)[0]["input"]
    assert first.query == ("1. oak 2. items: more" if task == "longlamp_abstract" else whole)
    assert first.input == whole
    assert [(one.id, one.user_id, one.target) for one in (first, second)] == [
        ("user0", "user0", "long 0"),
        ("user1", "user1", "long 1"),
    ]
    assert [document.text for document in first.profile] == TEXTS[task]
    expected = {"longlamp_abstract": ["7", "8"], "longlamp_review": ["0", "1"], "longlamp_topic": ["x", "y"]}
    assert [document.id for document in first.profile] == expected[task]
    assert data.splits(Benchmark(name=task, root=str(tmp_path))) == ("dev",)


def test_years_date_the_documents(tmp_path: Path) -> None:
    write(tmp_path / "val.json", rows("longlamp_abstract"))
    (first, _) = examples("longlamp_abstract", tmp_path)
    assert [document.time for document in first.profile] == [1230768000.0, 1293840000.0]
    assert first.time == 1293840001.0
    assert [document.until for document in first.profile] == [
        math.nextafter(end, -math.inf) for end in (1262304000.0, 1325376000.0)
    ]
    assert first.profile[0].fields["year"] == "2009"


@pytest.mark.parametrize("name", ["train.json", "train.parquet"])
def test_a_profile_of_columns_equals_a_profile_of_rows(tmp_path: Path, name: str) -> None:
    write(tmp_path / "rows" / name, rows("longlamp_topic"))
    write(tmp_path / "columns" / name, [as_columns(row) for row in rows("longlamp_topic")])
    expected = examples("longlamp_topic", tmp_path / "rows", "train")
    assert examples("longlamp_topic", tmp_path / "columns", "train") == expected


def test_parquet_parts_are_read_in_order_and_all(tmp_path: Path) -> None:
    values = rows("longlamp_review", 5)
    write(tmp_path / "train-00000-of-00002.parquet", values[:3])
    assert "found 1 of the 2 parts" in error_of("longlamp_review", tmp_path, "train")
    write(tmp_path / "train-00001-of-00002.parquet", values[3:])
    names = [example.id for example in examples("longlamp_review", tmp_path, "train")]
    assert names == [f"user{i}" for i in range(5)]
    assert len(data.files(Benchmark(name="longlamp_review", root=str(tmp_path), split="train"))) == 2


def test_a_users_further_rows_get_ids_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "train.json", rows("longlamp_topic", 1) * 3)
    found = examples("longlamp_topic", tmp_path, "train")
    assert [example.id for example in found] == ["user0", "user0#2", "user0#3"]
    assert {example.user_id for example in found} == {"user0"}


def test_a_user_whose_name_looks_like_a_further_row_is_another_one(tmp_path: Path) -> None:
    row = rows("longlamp_topic", 1)[0]
    write(tmp_path / "train.json", [row, row, {**row, "author": "user0#2"}])
    found = examples("longlamp_topic", tmp_path, "train")
    assert len({example.id for example in found}) == 3
    assert [example.user_id for example in found] == ["user0", "user0", "user0#2"]


def test_withheld_outputs_of_test_are_none(tmp_path: Path) -> None:
    row = {**rows("longlamp_topic", 1)[0], "output": None}
    write(tmp_path / "test.json", [row])
    write(tmp_path / "train.json", [row])
    assert examples("longlamp_topic", tmp_path, "test")[0].target is None
    assert "field 'output': found null" in error_of("longlamp_topic", tmp_path, "train")


def test_an_input_without_items_is_kept_and_reported(tmp_path: Path) -> None:
    write(tmp_path / "val.json", [{**rows("longlamp_abstract", 1)[0], "input": "Write on oaks"}])
    benchmark = Benchmark(name="longlamp_abstract", root=str(tmp_path))
    assert examples("longlamp_abstract", tmp_path)[0].query == "Write on oaks"
    (summary,) = data.validate(benchmark)
    assert "record 0, field 'input'" in summary.repairs[0]


MISSING = [
    {"reviewerId": "A1", "input": "Of a kettle.", "output": "Good.",
     "profile": [{"overall": math.nan, "summary": math.nan, "description": "pot", "reviewText": "fast"}]},
    {"reviewerId": "A2", "input": "Of a lamp.", "output": "nan",
     "profile": [{"overall": 4.0, "summary": "ok", "description": math.inf, "reviewText": "nan"}]},
]  # fmt: skip


@pytest.mark.parametrize("name", ["train.json", "train.jsonl"])
def test_what_is_no_number_is_missing_and_a_text_stays_one(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, MISSING)
    first, second = examples("longlamp_review", tmp_path, "train")
    assert [example.profile[0].text for example in (first, second)] == ["pot fast", "ok nan"]
    assert first.profile[0].fields == {"description": "pot", "reviewText": "fast"}
    assert second.target == "nan"


def test_values_of_parquet_that_json_lacks(tmp_path: Path) -> None:
    missing = {"summary": math.nan, "extra": -math.inf}
    entry = {
        **missing,
        "title": "T",
        "abstract": "A",
        "id": Decimal("17446744073709551615"),
        "date": datetime(2020, 5, 5, 7),
    }
    row = {"name": "u", "input": "Of: x", "output": "y", "profile": [entry]}
    write(tmp_path / "train.parquet", [row])
    (example,) = examples("longlamp_abstract", tmp_path, "train")
    assert example.profile[0].fields == {"title": "T", "abstract": "A"}
    assert example.profile[0].id == "17446744073709551615"
    assert example.profile[0].time == datetime(2020, 5, 5, 7, tzinfo=UTC).timestamp()


def error_of(task: str, root: Path, split: str = "dev") -> str:
    with pytest.raises(UserError) as error:
        examples(task, root, split)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_split_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "topic_writing_user" / "val.jsonl", rows("longlamp_topic"))
    write(tmp_path / "topic_writing_temporal" / "val.jsonl", rows("longlamp_topic"))
    assert "found the dev split more than once" in error_of("longlamp_topic", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": {"summary": ["a"], "content": []}}, "columns of the lengths"),
        ({"profile": [{"summary": " ", "content": ""}]}, "field 'profile[0].content': found a blank string"),
        ({"profile": [{"title": "a", "abstract": "b"}]}, "which look like longlamp_abstract"),
        (
            {"profile": [{"input": "a", "output": "b"}]},
            "found the keys input, output, wanted the keys summary",
        ),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path / "val.jsonl", [rows("longlamp_topic", 1)[0], {**rows("longlamp_topic", 1)[0], **change}])
    error = error_of("longlamp_topic", tmp_path)
    assert f"{tmp_path / 'val.jsonl'}: record 1" in error
    assert message in error


def test_another_tasks_rows_are_recognised(tmp_path: Path) -> None:
    write(tmp_path / "val.jsonl", rows("longlamp_review"))
    error = error_of("longlamp_topic", tmp_path)
    assert "field 'author': found the key 'reviewerId', which looks like longlamp_review" in error


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "val.parquet").write_bytes(b"PAR1 not really")
    assert "val.parquet: cannot be read as Parquet" in error_of("longlamp_topic", tmp_path)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "val.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'pbr-jax[parquet]'" in error_of("longlamp_topic", tmp_path)
