"""Questions with evidence and no target: in metrics of rankings as any other, in no metric of answers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import change

import pbr_jax
from pbr_jax.config import Config, override
from pbr_jax.eval.evaluate import evaluate, judged
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.report import report
from pbr_jax.eval.significance import Column, estimates
from pbr_jax.tasks import ANSWER_METRICS, released

RANKED = replace(released("longmemeval"), name="ranked", metrics=("recall@1", "ndcg@3"))
LIKELY = ("target_nll", "target_bpb")


def fields(questions: list[tuple[int, bool, int, float]]) -> dict[str, list[Any]]:
    """What `evaluate` takes: of each question its user, whether it has a target, its answer and its nats."""
    told = [
        {"total": nats if has else None, "tokens": 3 if has else None, "bytes": 9 if has else None}
        for _, has, _, nats in questions
    ]
    return {
        "ids": [f"q{i}" for i in range(len(questions))],
        "users": [f"u{user}" for user, *_ in questions],
        "predictions": ["a cat" if i % 2 else "tea" for i in range(len(questions))],
        "targets": ["a cat" if has else None for _, has, *_ in questions],
        "likelihoods": told,
        "rankings": [["a", "b"] if first else ["b", "a"] for _, _, first, _ in questions],
        "relevant": [[("a",)] for _ in questions],
        "categories": ["told" if has else "untold" for _, has, *_ in questions],
    }


QUESTIONS = st.lists(
    st.tuples(st.integers(0, 24), st.booleans(), st.integers(0, 1), st.floats(-9, -0.1)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(QUESTIONS)
def test_answers_are_measured_as_if_the_others_were_not_there_and_rankings_on_all(questions):
    everything = fields(questions)
    rows = [i for i, question in enumerate(questions) if question[1]]
    found = evaluate(RANKED, **everything, resamples=50)  # type: ignore[arg-type]
    ranked = evaluate(RANKED, **{**everything, "predictions": None, "likelihoods": None}, resamples=50)  # type: ignore[arg-type]
    alone = evaluate(RANKED, **{name: [v[i] for i in rows] for name, v in everything.items()}, resamples=50)  # type: ignore[arg-type]
    measured = {*ANSWER_METRICS, *LIKELY} if rows else set()
    assert found.metrics.keys() == {*RANKED.metrics, *measured}
    assert found.n == len(questions)
    for name, value in found.metrics.items():
        same = alone if name in measured else ranked
        assert value == pytest.approx(same.metrics[name])
        assert found.intervals[name] == pytest.approx(same.intervals[name])
    assert [set(one) for one in found.per_example] == [
        {*RANKED.metrics, *(measured if has else ())} for _, has, *_ in questions
    ]
    untold = len(questions) - len(rows)
    assert found.by_category.get("untold", {"n": 0}).keys() <= {"n", *RANKED.metrics}
    told = [
        note for note in found.notes if note.startswith(f"{untold} of {len(questions)} questions have no")
    ]
    assert len(told) == (0 < untold < len(questions))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=80).filter(any), st.integers(1, 30), st.integers(0, 9))
def test_a_row_of_nan_is_no_example(present: list[bool], users: int, seed: int):
    rng, known = np.random.default_rng(seed), np.array(present)
    owners = [f"u{owner}" for owner in rng.integers(0, users, len(known))]
    whole, partly = rng.normal(size=(2, len(known), 1))
    partly[~known] = np.nan
    first, second = estimates([Column(plain_mean, [whole]), Column(plain_mean, [partly], [whole])], owners)
    assert first == pytest.approx(estimates([Column(plain_mean, [whole])], owners)[0])
    kept = [owner for owner, one in zip(owners, present, strict=True) if one]
    alone = estimates([Column(plain_mean, [partly[known]], [whole[known]])], kept)[0]
    assert second == pytest.approx(alone)


def test_a_judge_leaves_out_what_it_cannot_grade() -> None:
    how: Any = {"resamples": 50, "confidence": 0.9, "seed": 0}
    found = judged([0.5, None, 0.6, 0.1, 1.0], list("aaabb"), **how)
    assert found == judged([0.5, 0.6, 0.1, 1.0], list("aabb"), **how)
    assert found["n"] == 4


@pytest.mark.parametrize("modulus", [1, 3])
def test_a_metric_of_other_questions_than_all_has_its_number_beside_it(
    tmp_path: Path, write: Any, tables: Any, modulus: int
) -> None:
    """Of 24 questions, each third has no likelihood, or (1) all have one; two categories in turn."""
    folders, has = [], [modulus == 1 or i % 3 > 0 for i in range(24)]
    for place, system in enumerate(("bm25", "dense")):
        folder = write(tmp_path / system, system, ["1"] * 24, categories=[f"c{i % 2}" for i in range(24)])
        metrics = {"mae": 1.0, "target_nll": 2.0}
        change(folder, metrics=metrics, by_category={f"c{i}": {"n": 12, **metrics} for i in range(2)}, edit=(
            lambda i, line, place=place: {"category": f"c{i % 2}", "metrics": {
                "mae": float((i + place) % 3), **({"target_nll": place + i % 5 + 0.5} if has[i] else {})
            }}))  # fmt: skip
        folders.append(folder)
    values, differences, of_category = tables(report(folders, reference="bm25"))[:3]
    beside = [" (n=16)", " (n=8)"] if modulus == 3 else ["", ""]
    column = values[0].index("target_nll")
    assert [row[column].endswith(f"]{beside[0]}") for row in values[1:]] == [True, True]
    assert all("(n=" not in row[values[0].index("mae")] for row in values[1:])
    [cell] = [row[differences[0].index("Δ target_nll (below 0 is better)")] for row in differences[1:]]
    assert cell.strip("*").partition("(")[2] == beside[0].partition("(")[2]
    assert [row[-1] for row in of_category[1:]] == [f"2.0000{beside[1]}"] * 4
    found = pbr_jax.compare(*folders)
    assert found.measured == {"mae": 24, "target_nll": 16 if modulus == 3 else 24}
    assert f"target_nll{beside[0]} " in repr(found)
    assert "mae (n" not in repr(found)
    page = report([folders[0]], "html")
    assert f"on {found.measured['target_nll']} questions" in page


# -- LoCoMo -----------------------------------------------------------------------------------------


def conversation(number: int) -> dict[str, Any]:
    """Three sessions and five questions, of which the second and the last are adversarial."""
    sessions = {
        f"session_{day}": [
            {"speaker": "Ann", "dia_id": f"D{day}:1", "text": f"I love {what} number {number}"}
        ]
        for day, what in ((1, "tea"), (2, "cats"), (3, "violins"))
    }
    dates = {f"{name}_date_time": f"1:00 pm on {day} May, 2023" for day, name in enumerate(sessions, 1)}
    asked = [
        {"question": f"about {what}?", "evidence": [f"D{day}:1"], "category": 5 if trap else 1}
        | ({"adversarial_answer": "football"} if trap else {"answer": what})
        for what, day, trap in (
            ("tea", 1, False), ("cats", 2, True), ("violins", 3, False), ("cats", 2, False), ("tea", 1, True)
        )
    ]  # fmt: skip
    return {"sample_id": f"c{number}", "conversation": {"speaker_a": "Ann", **sessions, **dates}, "qa": asked}


@pytest.fixture
def place(tmp_path: Path, fresh_cache: Path) -> dict[str, Any]:
    """The fields of a run on ten conversations."""
    (tmp_path / "locomo10.json").write_text(json.dumps([conversation(number) for number in range(10)]))
    data = {"benchmark.name": "locomo", "benchmark.root": str(tmp_path), "benchmark.split": "locomo10"}
    return {**data, "prompt.max_tokens": 900, "eval.resamples": 50, "retrieve.method": "bm25"}


@pytest.fixture
def runs(place: dict[str, Any], tmp_path: Path, tiny_models: dict[str, str]) -> list[Path]:
    folders = []
    for system, method in (("newest", "recency"), ("bm25", "bm25")):
        fields = {**place, **tiny_models, "system": system, "retrieve.method": method, "select.k": 1}
        fields |= {"generate.method": "ipa", "generate.max_new_tokens": 1, "eval.likelihood": "on"}
        folders.append(tmp_path / system)
        pbr_jax.run(override(Config(), fields), folders[-1])
    return folders


@pytest.mark.long
def test_adversarial_questions_are_in_recall_and_a_row_of_their_own(runs: list[Path]):
    results = json.loads((runs[1] / "results.json").read_text())
    records = [json.loads(line) for line in (runs[1] / "predictions.jsonl").read_text().splitlines()]
    adversarial = [record for record in records if record["category"] == "adversarial"]
    assert (results["n"], len(adversarial)) == (50, 20)
    assert {*results["metrics"]} >= {"recall@1", "target_nll", "target_bpb", *ANSWER_METRICS}
    assert results["by_category"]["adversarial"]["n"] == 20
    assert not {*results["by_category"]["adversarial"]} & {"target_nll", "target_bpb", *ANSWER_METRICS}
    assert all(record["target"] is None and "target_nll" not in record["metrics"] for record in adversarial)
    rest = [r["metrics"]["target_nll"] for r in records if r["category"] != "adversarial"]
    assert results["metrics"]["target_nll"] == pytest.approx(np.mean(rest))
    assert results["metrics"]["recall@1"] == pytest.approx(
        np.mean([r["metrics"]["recall@1"] for r in records])
    )
    (note,) = [note for note in results["notes"] if "no target" in note]
    assert note.startswith("20 of 50 questions have no target, so they are left out of exact_match, ")
    check_differences(runs)


@pytest.mark.long
def test_the_oracle_leaves_their_order_as_it_was(
    place: dict[str, Any], tmp_path: Path, tiny_models: dict[str, str]
):
    changed = {**place, **tiny_models, "generate.method": "none", "select.k": 3}
    ranked = {
        method: pbr_jax.run(
            override(Config(), {**changed, "select.method": method}), tmp_path / method
        ).records()
        for method in ("top_k", "oracle")
    }
    pairs = [
        (one["target"], *([d["id"] for d in record["documents"]] for record in (one, other)))
        for one, other in zip(ranked["top_k"], ranked["oracle"], strict=True)
    ]
    assert all(first == second for target, first, second in pairs if target is None)
    assert any(first != second for target, first, second in pairs if target is not None)


def check_differences(runs: list[Path]) -> None:
    """They are of the questions that have the metric."""
    text = report(runs, reference="newest")
    nll = [
        [r["metrics"]["target_nll"] for line in (run / "predictions.jsonl").read_text().splitlines()
         if "target_nll" in (r := json.loads(line))["metrics"]]
        for run in runs
    ]  # fmt: skip
    mean = np.mean(np.subtract(nll[1], nll[0]))
    assert len(nll[0]) == len(nll[1]) == 30
    assert re.search(rf"Δ target_nll.*\| {re.escape(f'{mean:+.4f}')} \[", text.replace("**", ""), re.DOTALL)
    assert re.search(r"Δ target_nll.* p[=<]", text, re.DOTALL)  # Holm's, of ten conversations
    assert "20 of 50 questions have no target" in text
    assert re.search(r"\| bm25 \| adversarial \| 20 \| 10 \|.*– \|", text)
