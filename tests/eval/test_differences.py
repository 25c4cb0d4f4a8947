"""Differences between rows: their p and its correction, McNemar's test, and what could have been seen."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from run_folders import change
from scipy import stats

from pbr_jax.eval.differences import paired
from pbr_jax.eval.metrics import text_metric
from pbr_jax.eval.report import report
from pbr_jax.eval.runs import Row, read_run
from pbr_jax.eval.significance import paired_difference
from pbr_jax.tasks import released

N = 24
LOWER = "(below 0 is better)"
LABELS = [released("lamp_1").labels[i % 2] for i in range(N)]
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


def test_differences_are_t_of_users_and_p_is_holms_over_the_rows_of_one_metric(runs, tables):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    text = report(runs)
    table = tables(text)[1]
    assert table[0] == ["run", f"Δ mae {LOWER}", "detectable mae", f"Δ rmse {LOWER}", "detectable rmse"]
    found = [
        expected(name, seed, share)
        for seed, share in ((1, 0.5), (2, 0.8), (3, 0.3))
        for name in ("mae", "rmse")
    ]
    corrected = np.ravel(
        [multitest.multipletests([one.p_value for one in found[i::2]], method="holm")[1] for i in (0, 1)],
        order="F",
    )
    shown = [(row[i], row[i + 1]) for row in table[1:] for i in (1, 3)]
    for (difference, seen), one, p in zip(shown, found, corrected, strict=True):
        told = f"p={p:.3f}" if p >= 0.001 else "p<0.001"
        bold = "**" if p < 0.1 and not one.low <= 0 <= one.high else ""
        assert difference == f"{bold}{one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}] {told}{bold}"
        assert seen == f"{one.detectable:.4f}"
    assert "p corrected over the 3 comparisons of each metric (Holm)" in text
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


def test_differences_are_over_units_where_examples_have_any(tmp_path, write, tables):
    """24 questions of 24 users and 6 articles are as sure as those of 6 users."""
    owners, groups = [f"u{i}" for i in range(N)], [f"g{i // 4}" for i in range(N)]
    texts = {}
    for name, kept in {"units": {"users": owners, "units": groups}, "users": {"users": groups}}.items():
        runs = [write(tmp_path / f"{name} {i}", f"s{i}", answers(i, 0.7), **kept) for i in range(2)]
        texts[name] = report(runs)
    assert tables(texts["units"])[1] == tables(texts["users"])[1]
    assert [row[:2] for row in tables(texts["units"])[0]] == [["run", "n"], ["s0", "24"], ["s1", "24"]]
    assert [row[2] for row in tables(texts["units"])[0]] == ["units", "6", "6"]
    assert "n = 24 questions of 6 units: 90% intervals from Student's t, each unit left out" in texts["units"]
    assert "intervals over units: a bootstrap from 20 units on" in texts["units"]
    assert "questions of 6 users: 90% intervals from Student's t, each user left out" in texts["users"]


def test_from_twenty_users_on_the_number_of_draws_hides_nothing(tmp_path, write, tables):
    """The share of 300 draws beyond zero is at least 2/301: of 19 comparisons .12, whatever they find."""
    owners = [f"u{i}" for i in range(N)]
    runs = [write(tmp_path / "z", "zero_shot", ["5" if t in "12" else "1" for t in RATINGS], users=owners)]
    runs += [write(tmp_path / f"{i}", f"s{i}", answers(i, 0.9), users=owners) for i in range(19)]
    text = report(runs)
    assert "over the 19 comparisons of each metric" in text
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
    assert table[0][:4] == [
        "run",
        "Δ accuracy (above 0 is better)",
        "detectable accuracy",
        "McNemar accuracy",
    ]
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


def test_runs_of_equal_seed_are_paired_in_any_order(tmp_path, write):
    """A row whose every run equals that of the other with its seed differs by nothing, and surely."""
    places = {
        (name, seed): write(
            tmp_path / f"{name}{seed}", name, answers(seed, 0.5, LABELS), benchmark="lamp_1", seed=seed
        )
        for name in ("one", "two")
        for seed in (1, 2, 3)
    }
    runs = {place: read_run(path) for place, path in places.items()}
    first = Row("one", tuple(runs["one", seed] for seed in (3, 1, 2)))
    second = Row("two", tuple(runs["two", seed] for seed in (1, 2, 3)))
    found = paired(first, second, ["accuracy"])["accuracy"]
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    fewer = paired(first, Row("two", second.runs[:2]), ["accuracy"])["accuracy"]
    assert fewer.high > fewer.low


def add(path: Path, **metrics: np.ndarray) -> None:
    """Further metrics of a run's questions, and their means."""
    means = json.loads((path / "results.json").read_text())["metrics"]
    change(
        path,
        edit=lambda i, line: {
            "metrics": line["metrics"] | {name: float(v[i]) for name, v in metrics.items()}
        },
        metrics=means | {name: float(values.mean()) for name, values in metrics.items()},
    )


def test_bits_per_byte_are_shown_and_not_tested(runs, tables):
    """A family is one metric's: neither likelihood's p depends on how many other metrics there are."""
    draw = np.random.default_rng(1)
    nats = {path: draw.normal(3 - 0.1 * i, 0.1, N) for i, path in enumerate(runs)}
    for path in runs:
        add(path, target_nll=nats[path])
    alone = [dict(zip(*pair))[f"Δ target_nll {LOWER}"] for pair in _rows(tables(report(runs))[1])]
    for path in runs:
        add(path, target_bpb=nats[path] / 2)
    text = report(runs)
    beside = [dict(zip(*pair)) for pair in _rows(tables(text)[1])]
    assert [row[f"Δ target_nll {LOWER}"] for row in beside] == alone
    assert all(" p" in cell for cell in alone)
    assert all(re.fullmatch(r"[+-][\d.]+ \[[^]]+\]", row[f"Δ target_bpb {LOWER}"]) for row in beside)
    assert all(float(row["detectable target_bpb"]) > 0 for row in beside)
    assert "p corrected over the 3 comparisons of each metric (Holm)" in text
    assert "target_bpb is target_nll in bits per byte, question by question" in text.replace("\\", "")


def _rows(table: list[list[str]]) -> list[tuple[list[str], list[str]]]:
    return [(table[0], row) for row in table[1:]]


def test_metrics_of_different_numbers_of_rows_are_families_of_their_own(runs):
    """Two of four runs have a likelihood: one comparison of it, three of each other metric."""
    for i, path in enumerate(runs[:2]):
        add(path, target_nll=np.random.default_rng(i).normal(3, 0.1, N))
    text = report(runs)
    assert "p corrected over the 1 to 3 comparisons of each metric (Holm)" in text


def test_per_example_metrics_that_no_reader_knows_have_differences_too(tmp_path, write, tables):
    """Such as a loss in nats: a plain mean over the lines of predictions.jsonl."""
    runs = []
    for name, shift in (("zero_shot", 0.0), ("dense", -0.5)):
        runs.append(write(tmp_path / name, name, answers(0, 0.5)))
        add(runs[-1], loss=np.random.default_rng(len(name)).normal(3 + shift, 0.1, N))
    values, differences = tables(report(runs))[:2]
    shown = dict(zip(differences[0], differences[1]))
    assert re.fullmatch(
        r"-0\.[45]\d+ \[-0.\d+, -0.\d+\] p<0.001", shown["Δ loss (above 0 is better)"].strip("*")
    )
    assert all("[" in dict(zip(values[0], row))["loss"] for row in values[1:])


def test_only_a_shown_difference_is_bold_and_the_text_says_when_it_is(runs, tables):
    """Bold stands for one thing: neither the best value nor an interval without 0 alone has it."""
    text = report(runs)
    values, differences = tables(text)[:2]
    bold = [cell for row in [*values, *differences[1:]] for cell in row if cell.startswith("**")]
    small = [
        cell
        for row in differences[1:]
        for cell in row[1::2]
        if float(re.split("p[=<]", cell)[1].strip("*")) < 0.1
    ]
    assert bold == small  # at a confidence of .9; t and p agree under 20 users
    assert 0 < len(bold) < 6
    assert text.count("an interval without 0 and a corrected p below 0.1") == 1
    assert "The reference is zero_shot; --reference SYSTEM sets another" in text.replace("\\", "")


@pytest.mark.parametrize("users", [6, N])  # Student's t, and a bootstrap
def test_intervals_of_differences_of_shares_end_at_one(tmp_path, write, tables, users):
    """A share of questions is at most 1, so a difference of two of them is too."""
    owners = [f"u{i % users}" for i in range(N)]
    right = [label if i % users else LABELS[1 - i % 2] for i, label in enumerate(LABELS)]
    wrong = [LABELS[1 - i % 2] for i in range(N)]
    runs = [
        write(tmp_path / name, name, texts, benchmark="lamp_1", users=owners)
        for name, texts in (("zero_shot", wrong), ("dense", right))
    ]
    cell = tables(report(runs))[1][1][1]
    low, high = (float(end) for end in re.findall(r"[+-]\d\.\d+", cell)[1:3])
    assert 0 < low < high <= 1
    assert users == N or high == 1


@pytest.mark.parametrize(
    ("systems", "chosen"),
    [
        ([("mine", "mine"), ("bm25", "bm25"), ("zero_shot", "none")], "zero_shot"),
        ([("mine", "mine"), ("bm25", "bm25"), ("nothing", "none")], "nothing"),
        ([("mine", "mine"), ("fused", "fused"), ("words", "bm25")], "words"),
        ([("mine", "mine"), ("fused", "fused")], "mine"),
    ],
)
def test_the_reference_is_a_baseline_where_there_is_one(tmp_path, write, systems, chosen):
    """A new method stands first in its own sweep, and is what others are not to be compared with."""
    runs = [
        write(tmp_path / name, name, answers(i, 0.3 + 0.2 * i), fields={"retrieve": {"method": method}})
        for i, (name, method) in enumerate(systems)
    ]
    text = report(runs).replace("\\", "")
    assert f"Difference from {chosen}: row less reference" in text
    assert f"Difference from {systems[0][0]}: " in report(runs, reference=systems[0][0]).replace("\\", "")


@pytest.mark.parametrize(("helped", "said"), [(1, True), (2, False)])
def test_a_difference_that_one_user_carries_is_told(tmp_path, write, helped, said):
    """All answers of some users become right, and no others change."""
    wrong = [LABELS[1 - i % 2] for i in range(N)]
    owners = [f"u{i % 12}" for i in range(N)]
    better = [LABELS[i] if i % 12 < helped else text for i, text in enumerate(wrong)]
    runs = [
        write(tmp_path / name, name, texts, benchmark="lamp_1", users=owners)
        for name, texts in (("zero_shot", wrong), ("dense", better))
    ]
    text = report(runs).replace("\\", "")
    told = "One of 12 users has 100% of the difference of accuracy between dense and zero_shot"
    assert (told in text) == said
    assert ("One of 12 users" in text) == said
