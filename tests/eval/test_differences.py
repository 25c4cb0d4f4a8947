"""Differences between rows: their p and its correction, McNemar's test, and what could have been seen."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pbr_jax.data.tasks import TASKS
from pbr_jax.eval.metrics import text_metric
from pbr_jax.eval.report import report
from pbr_jax.eval.significance import paired_difference

N = 24
LABELS = [TASKS["lamp_1"].labels[i % 2] for i in range(N)]
RATINGS = [str(1 + i % 5) for i in range(N)]


def answers(seed: int, right: float, targets: list[str] = RATINGS) -> list[str]:
    key = np.random.default_rng(seed)
    return [t if key.random() < right else str(key.choice(targets)) for t in targets]


def cells(text: str) -> list[str]:
    return re.findall(r"p[=<]\d\.\d+", text)


@pytest.fixture
def runs(tmp_path: Path, write) -> list[Path]:
    made = [("zero_shot", 0.1), ("bm25", 0.5), ("dense", 0.8), ("cfrag", 0.3)]
    return [write(tmp_path / name, name, answers(i, share)) for i, (name, share) in enumerate(made)]


def expected(metric_name: str, seed: int, share: float):
    """Of users of two questions each, none of them alike: t over users for a plain mean."""
    metric = text_metric(metric_name)
    first, base = (metric.statistics(texts, RATINGS) for texts in (answers(seed, share), answers(0, 0.1)))
    users = [f"u{i // 2}" for i in range(N)]
    return paired_difference(first, base, users, metric.finish, confidence=0.9)


def test_differences_are_t_of_users_and_p_is_holms_over_all_cells(runs, tables):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    text = report(runs)
    table = tables(text)[1]
    assert table[0] == ["run", "Δ mae", "detectable mae", "Δ rmse", "detectable rmse"]
    found = [
        expected(name, seed, share)
        for seed, share in ((1, 0.5), (2, 0.8), (3, 0.3))
        for name in ("mae", "rmse")
    ]
    corrected = multitest.multipletests([one.p_value for one in found], method="holm")[1]
    shown = [(row[i], row[i + 1]) for row in table[1:] for i in (1, 3)]
    for (difference, seen), one, p in zip(shown, found, corrected, strict=True):
        told = f"p={p:.3f}" if p >= 0.001 else "p<0.001"
        assert difference == f"{one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}] {told}"
        assert seen == f"{one.detectable:.4f}"
    assert "p corrected over the 6 comparisons of this table (Holm)" in text
    gaps = [text_metric("mae").statistics(answers(i, share), RATINGS) for i, share in ((2, 0.8), (0, 0.1))]
    _, over_users = stats.ttest_1samp((gaps[0] - gaps[1]).reshape(12, 2).mean(1), 0)
    assert found[2].p_value == pytest.approx(over_users)
    error = stats.sem((gaps[0] - gaps[1]).reshape(12, 2).mean(1))
    smallest = (stats.t.ppf(0.95, 11) + stats.t.ppf(0.8, 11)) * error
    assert shown[2][1] == f"{smallest:.4f}"


@pytest.mark.parametrize(("users", "given"), [(9, False), (10, True)])
def test_fewer_than_ten_users_have_intervals_and_no_p(tmp_path, write, tables, users, given):
    owners = [f"u{i % users}" for i in range(N)]
    runs = [
        write(tmp_path / name, name, answers(seed, share, LABELS), benchmark="lamp_1", users=owners)
        for name, seed, share in (("zero_shot", 0, 0.1), ("dense", 1, 0.9))
    ]
    text = report(runs)
    assert "[" in tables(text)[1][1][1]
    assert bool(cells(str(tables(text)[1]))) is given
    assert ("No p is given of fewer than 10 users" in text) is not given
    assert f"n = 24 questions of {users} users" in text


def test_from_twenty_users_on_the_number_of_draws_hides_nothing(tmp_path, write, tables):
    """The share of 300 draws beyond zero is at least 2/301: of 38 comparisons .25, whatever they find."""
    owners = [f"u{i}" for i in range(N)]
    runs = [write(tmp_path / "z", "zero_shot", ["5" if t in "12" else "1" for t in RATINGS], users=owners)]
    runs += [write(tmp_path / f"{i}", f"s{i}", answers(i, 0.9), users=owners) for i in range(19)]
    text = report(runs)
    assert "over the 38 comparisons" in text
    assert "bootstrap over users" in text
    shown = [float(cell[2:]) for cell in cells(str(tables(text)[1]))]
    assert len(shown) == 38
    assert min(shown) < 0.02


def test_mcnemar_stands_beside_accuracy(tmp_path, write, tables):
    """Closed form: 2 sum_{i <= min} C(n, i) / 2^n; two comparisons, so Holm doubles the smaller p."""
    wrong = [LABELS[1 - i % 2] for i in range(N)]
    right = {"zero_shot": range(8), "dense": range(4, 22), "bm25": range(2, 13)}
    runs = [
        write(
            tmp_path / name,
            name,
            [LABELS[i] if i in which else wrong[i] for i in range(N)],
            benchmark="lamp_1",
        )
        for name, which in right.items()
    ]
    text = report(runs)
    table = tables(text)[1]
    assert table[0][:4] == ["run", "Δ accuracy", "detectable accuracy", "McNemar accuracy"]
    dense, bm25 = (row[3] for row in table[1:])
    # Only dense: 8 to 21, only zero_shot: 0 to 3. Only bm25: 8 to 12, only zero_shot: 0 and 1.
    p = [2 * (1 + 18 + 153 + 816 + 3060) / 2**18, 2 * (1 + 7 + 21) / 2**7]
    assert dense == f"14 : 4 p={2 * p[0]:.3f}"
    assert bm25 == f"5 : 2 p={p[1]:.3f}"
    assert "takes questions as independent" in text
    assert (
        "McNemar"
        not in report([runs[0], write(tmp_path / "x", "mae", answers(0, 1.0))], "md").split("lamp_3")[1]
    )


def test_rows_of_several_seeds_have_no_mcnemar(tmp_path, write, tables):
    runs = [write(tmp_path / "z", "zero_shot", answers(0, 0.2, LABELS), benchmark="lamp_1")]
    runs += [
        write(tmp_path / f"s{i}", "random", answers(i, 0.5, LABELS), benchmark="lamp_1", seed=i)
        for i in (1, 2)
    ]
    text = report(runs)
    assert "McNemar" not in text
    assert "each user and each seed left out in turn" in text


def test_per_example_metrics_that_no_reader_knows_have_differences_too(tmp_path, write, tables):
    """Such as a loss in nats: a plain mean over the lines of predictions.jsonl."""
    runs = []
    for name, shift in (("zero_shot", 0.0), ("dense", -0.5)):
        path = write(tmp_path / name, name, answers(0, 0.5))
        losses = np.random.default_rng(len(name)).normal(3 + shift, 0.1, N)
        lines = (
            (path / "predictions.jsonl")
            .read_text()
            .replace('"metrics": {', '"metrics": {"loss": @, ')
            .split("@")
        )
        text = "".join(a + b for a, b in zip(lines, [*map(repr, losses.tolist()), ""]))
        (path / "predictions.jsonl").write_text(text)
        results = (path / "results.json").read_text()
        (path / "results.json").write_text(
            results.replace('"metrics": {', f'"metrics": {{"loss": {losses.mean()}, ', 1)
        )
        runs.append(path)
    values, differences = tables(report(runs))[:2]
    shown = dict(zip(differences[0], differences[1]))
    assert re.fullmatch(r"-0\.[45]\d+ \[-0.\d+, -0.\d+\] p<0.001", shown["Δ loss"])
    assert all("[" in dict(zip(values[0], row))["loss"] for row in values[1:])
