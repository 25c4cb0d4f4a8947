"""How often each label is the answer."""

import json

import numpy as np
import pytest
from run_folders import change
from test_report import TARGETS, N, answers

from pbr_jax.eval.evaluate import evaluate, label_distribution, one_answer_note
from pbr_jax.eval.report import report
from pbr_jax.eval.significance import paired_difference
from pbr_jax.tasks import released

TASK = released("lamp_3")


def test_shares_are_counted_over_labels_and_all_others_together():
    assert label_distribution(TASK, ["1", "1", "5", "4.5"]) == {
        "1": 0.5, "2": 0, "3": 0, "4": 0, "5": 0.25, "other": 0.25,
    }  # fmt: skip
    assert "other" not in label_distribution(TASK, ["1"])
    assert label_distribution(TASK, []) == label_distribution(released("lamp_7"), ["a"]) == {}


def test_one_answer_to_everything_is_no_signal():
    nine, ten = (label_distribution(TASK, ["5"] * n + ["1"] * (100 - n)) for n in (90, 91))
    assert one_answer_note(nine, 100) == []
    assert one_answer_note(ten, 100)[0].startswith("over 90% of the answers are '5'")
    assert one_answer_note(label_distribution(TASK, ["5"] * 9), 9) == []  # of few answers that says little
    assert one_answer_note({}, 0) == []


def test_a_report_shows_the_shares_of_every_row(tmp_path, write, tables):
    runs = [write(tmp_path / name, name, answers(seed, 0.6)) for seed, name in enumerate(("a", "b", "c"))]
    for run, shares in zip(runs[:2], ({"1": 0.05, "5": 0.95}, {"1": 0.25, "other": 0.75})):
        change(run, answers=shares, notes=one_answer_note(shares, N))
    text = report(runs)
    found = next(table for table in tables(text) if table[0][-1] == "other")
    assert found == [
        ["run", "1", "5", "other"],
        ["a", "5.0%", "95.0% (no signal)", "0.0%"],
        ["b", "25.0%", "0.0%", "75.0%"],
        ["c", "–", "–", "–"],
    ]
    assert text.count("there is no signal in such a run") == 1


def test_expected_ratings_have_metrics_intervals_and_paired_differences(tmp_path, write, tables):
    ids, users = [f"q{i}" for i in range(N)], [f"u{i // 2}" for i in range(N)]
    expected = [[2.5 + i % 3 / 2 for i in range(N)], [3.0 + i % 4 / 4 for i in range(N)]]
    errors = [[abs(value - float(target)) for value, target in zip(column, TARGETS)] for column in expected]
    runs = []
    for name, column, error in zip("ab", expected, errors):
        found = evaluate(
            TASK, ids=ids, users=users, predictions=answers(0, 0.5), expected=column, targets=TARGETS
        )
        names = ["mae", "rmse", "accuracy", "expected_mae", "expected_rmse", "expected_correlation"]
        assert list(found.metrics) == names
        wanted = np.corrcoef(column, [float(target) for target in TARGETS])[0, 1]
        assert found.metrics["expected_correlation"] == pytest.approx(wanted)
        assert found.metrics["expected_mae"] == pytest.approx(sum(error) / N)
        assert found.metrics["expected_rmse"] == pytest.approx((sum(e * e for e in error) / N) ** 0.5)
        low, high = found.intervals["expected_rmse"]
        assert low < found.metrics["expected_rmse"] < high
        assert [example["expected_mae"] for example in found.per_example] == pytest.approx(error)
        runs.append(write(tmp_path / name, name, answers(0, 0.5)))
        lines = [json.loads(line) for line in (runs[-1] / "predictions.jsonl").read_text().splitlines()]
        rows = zip(lines, found.per_example, column, strict=True)
        told = ({**line, "metrics": own, "expected": value} for line, own, value in rows)
        (runs[-1] / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
        change(runs[-1], metrics=found.metrics)
    header, row = next(t for t in tables(report(runs)) if t[0][1].startswith("Δ mae"))
    squares = [np.square(error)[:, None] for error in errors]
    wanted = paired_difference(
        squares[1], squares[0], users, lambda mean: np.sqrt(mean[..., 0]), resamples=300, confidence=0.9
    )
    shown = row[header.index("Δ expected_rmse (below 0 is better)")]
    assert shown.startswith(f"{wanted.value:+.4f} [{wanted.low:+.4f}, {wanted.high:+.4f}]")
    first, second = (np.corrcoef(column, [float(target) for target in TARGETS])[0, 1] for column in expected)
    assert row[header.index("Δ expected_correlation (above 0 is better)")].startswith(
        f"{second - first:+.4f} ["
    )
