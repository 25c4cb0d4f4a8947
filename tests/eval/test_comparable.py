"""What may be set against each other: other data, examples, targets; other models, prompts, k, training."""

import json
from pathlib import Path

import pytest
from run_folders import change

from pbr_jax.eval.report import report

N = 24
GOOD, BAD = [str(1 + i % 5) for i in range(N)], ["1"] * N


def settings_of(tables, text: str) -> dict[str, dict[str, str]]:
    """The cells of the table of values by run and column."""
    header, *lines = tables(text)[0]
    return {line[0]: dict(zip(header, line)) for line in lines}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"data": "e" * 20}, "read different data"),
        ({"ids": [f"x{i}" for i in range(N)]}, "did not score the same examples"),
        ({"users": ["u"] * 12 + ["v"] * 12}, "did not score the same examples"),
        ({"targets": ["2", *GOOD[1:]]}, "were scored against different targets"),
    ],
)
def test_what_was_not_computed_on_the_same_has_no_difference_and_no_best(
    tmp_path: Path, write, tables, other, why
):
    runs = [
        write(tmp_path / "z", "zero_shot", BAD),
        write(tmp_path / "d", "dense", GOOD[::-1]),
        write(tmp_path / "o", "bm25", GOOD, **other),
    ]
    text = report(runs)
    values, differences = tables(text)[:2]
    assert [row[0] for row in differences[1:]] == ["dense", "bm25"]
    assert "[" in differences[1][1]
    assert set(differences[2][1:]) == {"–"}
    assert f"No difference between bm25 and zero_shot is given: they {why}" in text.replace("\\", "")
    assert f"The runs {why}" in text
    assert "**" not in str(values)
    assert "over the 1 comparison of each metric" in text  # what is not printed is not corrected for
    assert "**" not in str(tables(report(runs[:2]))[0])  # a best value is not bold: nothing is shown by it


def test_questions_that_were_forgotten_are_left_out_of_differences_and_nothing_else(
    tmp_path: Path, write, tables
):
    kept = {"ids": [f"q{i}" for i in range(2, N)], "users": [f"u{i // 2}" for i in range(2, N)]}
    kept["targets"] = [str(1 + i % 5) for i in range(2, N)]
    runs = [write(tmp_path / "z", "zero_shot", BAD), write(tmp_path / "d", "dense", GOOD[2:], **kept)]
    assert "did not score the same examples" in report(runs)
    change(runs[1], forgotten=1)  # which does not explain that two are missing
    assert "did not score the same examples" in report(runs)
    change(runs[1], forgotten=2)
    text = report(runs)
    assert "did not score the same examples" not in text
    assert f"{runs[1]}: 2 questions were removed by pbr-jax forget" in text.replace("\\", "")
    assert "[" in tables(text)[1][1][1]


def test_a_metric_in_two_variants_has_no_difference_while_others_do(tmp_path: Path, write, tables):
    texts = [f"word{i % 3} other{i % 4}" for i in range(N)]
    options = dict(benchmark="lamp_4", targets=texts)
    made = {"zero_shot": texts[::-1], "dense": [f"{text} more" for text in texts]}
    runs = [write(tmp_path / name, name, told, **options) for name, told in made.items()]
    change(runs[1], variants={"meteor": "WordNet"})
    values, differences = tables(report(runs))[:2]
    cells = dict(zip(differences[0], differences[1]))
    assert cells["Δ meteor (above 0 is better)"] == "–"
    assert "[" in cells["Δ rouge1 (above 0 is better)"]
    assert "No difference of meteor between dense and zero_shot" in report(runs).replace("\\", "")
    assert "**" not in str(values)


@pytest.mark.parametrize(
    ("field", "fields", "shown"),
    [
        ("llm.model", ({"llm": {"model": "small"}}, {"llm": {"model": "large"}}), ("small", "large")),
        ("encoder.model", ({"encoder": {"model": "a"}}, {"encoder": {"model": "b"}}), ("a", "b")),
        ("prompt.max_tokens", ({"prompt": {"max_tokens": 512}}, {"prompt": {"max_tokens": 64}}),
         ("512", "64")),
        ("generate.temperature", ({"generate": {"temperature": 0.0}}, {"generate": {"temperature": 0.7}}),
         ("0.0", "0.7")),
        ("retrieve.k", ({"retrieve": {"k": 4}}, {"retrieve": {"k": 8}}), ("4", "8")),
        ("select.k", ({"select": {"k": None}}, {"select": {"k": 3}}), ("–", "3")),
        ("neighbours.m", ({"neighbours": {"m": 1}}, {"neighbours": {"m": 4}}), ("1", "4")),
        ("limit_training", ({"limit_training": None}, {"limit_training": 240}), ("–", "240")),
        ("benchmark.training", ({"benchmark": {"training": "train"}}, {"benchmark": {"training": "half"}}),
         ("train", "half")),
        ("feedback.limit", ({"feedback": {"limit": 12}}, {"feedback": {"limit": 40}}), ("12", "40")),
        ("llm.timeout", ({"llm": {"timeout": 1}}, {"llm": {"timeout": 2}}), ("", "")),  # bears on no result
    ],
)  # fmt: skip
def test_settings_in_which_rows_differ_are_told_of_every_row(
    tmp_path: Path, write, tables, field, fields, shown
):
    """Of the third row too, which is of a system of its own and agrees with the first."""
    names = ("zero_shot", "dense", "bm25")
    runs = [write(tmp_path / name, name, GOOD, fields=fields[i % 2]) for i, name in enumerate(names)]
    found = settings_of(tables, report(runs))
    assert [found[name].get(field, "") for name in names] == [shown[0], shown[1], shown[0]]
    assert field not in tables(report([runs[0], runs[2]]))[0][0]


def test_other_training_files_are_told(tmp_path: Path, write, tables):
    runs = [
        write(tmp_path / "z", "zero_shot", GOOD),
        write(tmp_path / "a", "cfrag", GOOD, fingerprint={"training": "a" * 16}),
        write(tmp_path / "b", "ropg", GOOD, fingerprint={"training": "b" * 16}),
    ]
    found = settings_of(tables, report(runs))
    assert {name: cells["training data"] for name, cells in found.items()} == {
        "zero_shot": "–",
        "cfrag": "a" * 8,
        "ropg": "b" * 8,
    }


def test_other_weights_under_one_path_are_told(tmp_path: Path, write, tables):
    """And only then: another model's hash says no more than its name."""

    def run(name: str, model: str, hash: str) -> Path:
        return write(tmp_path / name, name, GOOD, fields={"llm": {"model": model}}, weights={"llm": hash})

    old, new, other = run("old", "folder", "1" * 16), run("new", "folder", "2" * 16), run("x", "y", "3" * 16)
    found = settings_of(tables, report([old, new]))
    assert [found[name]["llm weights"] for name in ("old", "new")] == ["1" * 8, "2" * 8]
    assert "llm weights" not in tables(report([old, other]))[0][0]
    assert "llm.model" in tables(report([old, other]))[0][0]


def test_a_table_by_category(tmp_path: Path, write, tables):
    categories = ["work", "home"] * 12
    runs = [
        write(tmp_path / name, name, GOOD[::-1], categories=categories) for name in ("zero_shot", "dense")
    ]
    text = report(runs)
    assert "By category, with 90% intervals" in text
    shown = tables(text)[2]
    assert shown[0] == ["run", "category", "n", "users", "mae", "rmse"]
    assert [row[:4] for row in shown[1:]] == [
        [name, category, "12", "12"] for name in ("zero_shot", "dense") for category in ("home", "work")
    ]
    found = json.loads((runs[0] / "results.json").read_text())
    (low, high), value = found["by_category_intervals"]["home"]["mae"], found["by_category"]["home"]["mae"]
    assert shown[1][4] == f"{value:.4f} [{low:.4f}, {high:.4f}]"
    plain = write(tmp_path / "plain", "bm25", GOOD)
    assert "By category" not in report([plain])


@pytest.mark.parametrize(("other", "column"), [(8, True), (4, False)])
def test_a_row_without_documents_says_no_number_of_documents(
    tmp_path: Path, write, tables, other: int, column: bool
):
    bare = write(tmp_path / "z", "zero_shot", BAD, k=3, fields={"retrieve": {"k": 3, "method": "none"}})
    runs = [bare, write(tmp_path / "d", "dense", GOOD), write(tmp_path / "b", "bm25", GOOD, k=other)]
    found = settings_of(tables, report(runs))
    assert ("retrieve.k" in found["dense"]) is column
    assert found["zero_shot"].get("retrieve.k", "–") == "–"
