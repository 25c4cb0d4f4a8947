"""Run folders read back: what they hold, and one clear line for each way they can be broken."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.eval.run_files import HASHED, RESULTS, folders_of, left_out, run_folders, sealed, unfinished
from pbr_jax.eval.runs import read_run, table_rows


def folder(path: Path, *, config: dict, lines: list[dict] | None = None, **results) -> Path:
    path.mkdir(parents=True)
    found = {"system": "dense", "benchmark": "lamp_3", "split": "dev", "n": 1, "dropped": 0,
             "metrics": {"mae": 0.5}, "intervals": {"mae": [0.25, 0.75]}}  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    if lines is not None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (path / "predictions.jsonl").write_text(text, encoding="utf-8")
    (path / "results.json").write_text(json.dumps(sealed(path, found | results)))
    return path


def test_a_folder_is_read_whole(tmp_path):
    lines = [
        {"id": "1", "user_id": "u", "prediction": "a\u2028b", "target": "2", "metrics": {"mae": 1}},
        {"id": "2", "user_id": "u", "prediction": "b", "target": None, "metrics": {}},
    ]
    run = read_run(folder(tmp_path / "r", config={"seed": 1, "retrieve": {"k": 4, "x": {}}}, lines=lines))
    assert run.config == {"seed": 1, "retrieve.k": 4}
    assert run.intervals == {"mae": (0.25, 0.75)}
    assert run.records is not None
    assert list(run.records) == ["1"]  # the second is not scored
    assert run.records["1"].prediction == "a\u2028b"


def test_predictions_may_be_absent(tmp_path):
    assert read_run(folder(tmp_path / "r", config={})).records is None


def test_labels_tell_runs_of_a_system_apart_and_seeds_collapse(tmp_path):
    def run(name: str, system: str, seed: int = 0, k: int = 4, root: str = "/a"):
        config = {"system": system, "seed": seed, "retrieve": {"k": k}, "benchmark": {"root": root}}
        return read_run(folder(tmp_path / name, config=config, system=system))

    runs = [run("z", "zero_shot", k=9), *(run(f"a{s}", "dense", seed=s) for s in range(3)),
            run("b", "dense", k=8, root="/b"), run("c", "bm25"), run("d", "bm25")]  # fmt: skip
    rows = table_rows(runs)
    assert [(row.label, len(row.runs)) for row in rows] == [
        ("zero_shot", 1),
        ("dense retrieve.k=4", 3),
        ("dense retrieve.k=8", 1),
        (f"bm25 ({tmp_path / 'c'})", 1),  # the same run twice is no second seed
        (f"bm25 ({tmp_path / 'd'})", 1),
    ]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("results.json", None, "has no results.json, so it is no finished run"),
        ("config.json", None, "has no config.json"),
        ("results.json", '{"system": ', "results.json: not valid JSON"),
        ("results.json", r'{"system": "\ud800"}', "results.json: not valid JSON .*surrogates"),
        ("results.json", "[]", "results.json: expected a JSON object, found list"),
        ("results.json", "{}", "results.json: an older version wrote it"),
        ("config.json", "\udcff", "config.json: cannot be read"),
        *((file, '{"a":' * depth + "1" + "}" * depth, "nested more than 100 deep")
          for file in ("config.json", "results.json", "predictions.jsonl") for depth in (100_000,)),
        ("predictions.jsonl", '{"id": 1}\n{', "predictions.jsonl, line 2: not valid JSON"),
        ("predictions.jsonl", '{"id": "a", "metrics": {"mae": 1}}', "missing or has another type .*user_id"),
    ],
)  # fmt: skip
def test_broken_folders_are_named(tmp_path, reseal, file, text, message):
    path = folder(tmp_path / "r", config={}, lines=[])
    (path / file).unlink()
    if text is not None:
        (path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
        if file != "results.json":
            reseal(path)
    with pytest.raises(UserError, match=message) as error:
        read_run(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sweeps_folder_is_no_run_and_names_its_runs(tmp_path):
    folder(tmp_path / "a1", config={}, lines=[])
    (tmp_path / "sweep.jsonl").write_text('{"run": "a1"}\n')
    with pytest.raises(UserError, match=r"holds several runs, want one of them; give .*a1$"):
        read_run(tmp_path)


@pytest.mark.parametrize("file", [RESULTS, *HASHED])
def test_a_file_that_the_run_did_not_write_as_it_is_is_named(tmp_path, reseal, file):
    """One byte more, one number else, a file that was not there."""
    lines = [{"id": "1", "user_id": "u", "prediction": "a", "target": "2", "metrics": {"mae": 1}}]
    path = folder(tmp_path / "r", config={"seed": 1}, lines=lines)
    for name in ("texts.jsonl", "run.json"):
        (path / name).write_text('{"parts": {}}\n')
    reseal(path)
    read_run(path)
    whole = (path / file).read_text()
    for altered in (whole.replace("0.5", "0.4", 1) + " " * (file != "results.json"), whole + '{"n": 3}', ""):
        (path / file).write_text(altered)
        with pytest.raises(UserError, match=rf"{file}: .*run the same command again"):
            read_run(path)
    (path / file).write_text(whole)
    read_run(path)


def test_a_file_beside_a_run_that_had_none_is_not_the_runs(tmp_path):
    path = folder(tmp_path / "r", config={})
    (path / "predictions.jsonl").write_text("")
    with pytest.raises(UserError, match=r"predictions\.jsonl: it is not what the run wrote"):
        read_run(path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=f"no run folder at {tmp_path / 'gone'}"):
        read_run(tmp_path / "gone")


def test_a_sweeps_folder_stands_for_its_finished_runs_in_order(tmp_path: Path):
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        (tmp_path / name / "results.json").write_text("{}")
    assert run_folders(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "sweep.jsonl").write_text('{"run": "b"}\n{"run": "c"}\n{"run": "a"}\n')
    assert run_folders(tmp_path) == [tmp_path / "b", tmp_path / "a"]
    (tmp_path / "sweep.jsonl").write_text('{"run": []}\n{"run": {}}\n{"run": "b"}\n{}\n')
    assert run_folders(tmp_path) == [tmp_path / "b", tmp_path / "a"]
    assert run_folders(tmp_path / "a") == [tmp_path / "a"]
    assert run_folders(tmp_path / "c") == [tmp_path / "c"]


def test_replaced_runs_are_left_out_and_named_and_a_list_is_passed_over(tmp_path: Path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text("{}")
    lines = [{"run": "new", "overrides": {"k": 1}}, {"run": "old", "overrides": {"k": 2}, "replaced": True}]
    (tmp_path / "sweep.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert folders_of([tmp_path]) == [tmp_path / "new"]
    assert unfinished(tmp_path) == ""
    assert "left out and not counted: old (k 2)." in left_out(tmp_path)
    assert left_out(tmp_path / "new") == ""
    assert folders_of(sorted(tmp_path.iterdir())) == [tmp_path / "new", tmp_path / "old"]  # DIR/*
    with pytest.raises(UserError, match="no runs are given"):
        folders_of([tmp_path / "sweep.jsonl"])


def test_a_model_of_its_own_is_told_by_its_name(write, tmp_path: Path):
    """Not by the twenty fields that the other row lacks; rows that all have one tell what differs."""

    def labels(*llms: dict[str, Any] | None) -> list[str]:
        runs = [
            read_run(write(tmp_path / f"{len(llms)}{i}", "icr", ["3"] * 24, fields={"select": {"llm": llm}}))
            for i, llm in enumerate(llms)
        ]
        return [row.label for row in table_rows(runs)]

    one, other = ({"model": "big", "dtype": dtype, "batch_size": 32} for dtype in ("float32", "bfloat16"))
    assert labels(None, one) == ["icr select.llm.model=None", "icr select.llm.model=big"]
    assert labels(one, other, {**one, "model": "small"}) == [
        "icr select.llm.model=big select.llm.dtype=float32",
        "icr select.llm.model=big select.llm.dtype=bfloat16",
        "icr select.llm.model=small select.llm.dtype=float32",
    ]
