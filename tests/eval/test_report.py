"""Reports on run folders written by hand: labels, best values, differences, warnings, pictures."""

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from run_folders import change

from pbr_jax.base.types import UserError
from pbr_jax.eval import section
from pbr_jax.eval.metrics import plain_mean, text_metric
from pbr_jax.eval.report import headline_metrics, report
from pbr_jax.eval.significance import Column, estimates
from pbr_jax.tasks import released

N = 24
IDS = [f"q{i}" for i in range(N)]
USERS = [f"u{i // 2}" for i in range(N)]
TARGETS = [str(1 + i % 5) for i in range(N)]


def answers(seed: int, right: float) -> list[str]:
    key = np.random.default_rng(seed)
    return [target if key.random() < right else str(key.integers(1, 6)) for target in TARGETS]


@pytest.fixture
def runs(tmp_path, write) -> list[Path]:
    return [
        write(tmp_path / "a", "dense", answers(1, 0.6)),
        write(tmp_path / "b", "zero_shot", answers(2, 0.1)),
        write(tmp_path / "c", "dense", answers(3, 0.8), k=8),
    ]


def test_values_differences_and_origins(runs, tables):
    text = report(runs, "md")
    values, differences, origins = tables(text)
    assert values[0] == ["run", "retrieve.k", "n", "users", "mae", "rmse"]
    assert [row[0] for row in values[1:]] == ["dense retrieve.k=4", "zero_shot", "dense retrieve.k=8"]
    assert [row[1:4] for row in values[1:]] == [["4", "24", "12"], ["4", "24", "12"], ["8", "24", "12"]]
    found = [json.loads((run / "results.json").read_text()) for run in runs]
    maes = [one["metrics"]["mae"] for one in found]
    assert "**" not in str(values)
    ends = [one["intervals"]["mae"] for one in found]
    shown = [f"{mae:.4f} [{low:.4f}, {high:.4f}]" for mae, (low, high) in zip(maes, ends)]
    assert [row[4].strip("*") for row in values[1:]] == shown
    assert "90% intervals" in text
    assert [row[0] for row in differences[1:]] == ["dense retrieve.k=4", "dense retrieve.k=8"]
    assert "Difference from zero_shot: row less reference, paired, n = 24 questions of 12 users" in text
    assert origins[1] == ["dense retrieve.k=4", str(N), "0", "d" * 13, "c" * 13, "f" * 13, str(runs[0])]
    assert "Warning" not in text


def test_of_one_user_no_difference_is_called_significant(tmp_path, write, tables):
    made = {"dense": answers(1, 0.6), "zero_shot": answers(2, 0.1)}
    runs = [write(tmp_path / name, name, texts, users=["u"] * N) for name, texts in made.items()]
    found = [text_metric("mae").statistics(texts, TARGETS).mean() for texts in made.values()]
    values, differences, _ = tables(report(runs, "md"))
    assert differences[1][1:3] == [f"{found[0] - found[1]:+.4f}", "–"]
    assert [row[3].strip("*") for row in values[1:]] == [f"{value:.4f}" for value in found]


def test_seeds_are_one_row_with_their_deviation(tmp_path, write, tables):
    made = [answers(seed, 0.5) for seed in range(3)]
    runs = [write(tmp_path / f"s{seed}", "random", made[seed], seed=seed) for seed in range(3)]
    runs.insert(0, write(tmp_path / "z", "zero_shot", answers(9, 0.2)))
    values, differences, origins = tables(report(runs, "md"))
    errors = [text_metric("mae").statistics(p, TARGETS) for p in made]
    maes = [found.mean() for found in errors]
    (one,) = estimates([Column(plain_mean, errors)], USERS, confidence=0.9)
    shown = f"{np.mean(maes):.4f} ± {np.std(maes, ddof=1):.4f} [{one.low:.4f}, {one.high:.4f}] (3 seeds)"
    assert values[2][:4] == ["random", "24", "12", shown]
    assert [row[0] for row in origins[2:]] == ["random seed=0", "random seed=1", "random seed=2"]
    base = text_metric("mae").statistics(answers(9, 0.2), TARGETS)
    (less,) = estimates([Column(plain_mean, errors, [base])], USERS, confidence=0.9)
    assert differences[1][1].strip("*").startswith(f"{less.value:+.4f} [{less.low:+.4f}, {less.high:+.4f}] p")


def test_decoding_seeds_are_one_row_too(tmp_path, write, tables):
    """Three decodings of one policy, and of another policy: six runs of one row, and no setting of it."""
    runs = [
        write(
            tmp_path / f"{seed}{own}", "purple", answers(3 * seed + own, 0.5), seed=seed,
            fields={"generate": {"seed": own, "temperature": 0.7}},
        )
        for seed in (0, 1)
        for own in range(3)
    ]  # fmt: skip
    values, origins = tables(report(runs, "md"))
    assert values[0] == ["run", "n", "users", "mae", "rmse"]
    assert [row[0] for row in values[1:]] == ["purple"]
    assert values[1][3].endswith("(6 seeds)")
    assert [row[0] for row in origins[1:3]] == [
        "purple seed=0 generate.seed=0",
        "purple seed=0 generate.seed=1",
    ]


def test_a_run_without_predictions_has_values_but_no_difference(runs, tables):
    (runs[2] / "predictions.jsonl").unlink()
    text = report(runs, "md")
    assert tables(text)[1][-1] == ["dense retrieve.k=8", "–", "–", "–", "–"]
    assert "without predictions.jsonl" in text
    assert "Warning" not in text


def test_one_run_is_neither_best_nor_different(runs, tables):
    text = report(runs[:1], "md")
    assert len(tables(text)) == 2
    assert "**" not in text


def test_withheld_labels_are_said(tmp_path, write):
    path = change(write(tmp_path / "r", "dense", answers(1, 1.0)), metrics={}, intervals={}, n=0)
    assert "targets are withheld" in report([path], "html")


def test_notes_are_sentences_and_names_of_options_stay_as_they_are(tmp_path, write):
    notes = ["retrieve.method luf learns.", "two folds were answered", "none."]
    path = change(write(tmp_path / "a", "dense", answers(1, 0.6)), notes=notes)
    lines = report([path], "md").splitlines()
    for sentence in ("retrieve.method luf learns.", "Two folds were answered.", "None."):
        assert sentence in lines


def test_ranking_metrics_are_shown_at_five():
    names = (*released("longmemeval").metrics, "token_f1")
    shown = headline_metrics(names)
    assert shown[:2] == ["recall@5", "ndcg@5"]
    assert shown[2:] == ["recall_any@5", "recall_all@5", "ndcg_longmemeval@5", "token_f1"]
    assert headline_metrics(names, all_metrics=True) == list(names)
    assert headline_metrics(["rouge1", "rougeL"]) == ["rouge1", "rougeL"]


def test_html_has_a_title_and_computes_differences_once(runs, monkeypatch):
    calls: list[str] = []
    real = section.paired
    monkeypatch.setattr(section, "paired", lambda row, *told: calls.append(row.label) or real(row, *told))
    text = report(runs, "html")
    assert "<title>Results: lamp_3</title>" in text
    assert text.count("<table>") == 3  # values, differences, origins
    assert calls == ["dense retrieve.k=4", "dense retrieve.k=8"]


def test_latex_tables(runs):
    text = report(runs, "latex")
    assert text.count(r"\begin{tabular}") == 3
    assert r"zero\_shot" in text


def test_bad_requests_are_user_errors(runs, tmp_path):
    with pytest.raises(UserError, match="no report format 'pdf'; there are md, html, latex"):
        report(runs, "pdf")
    with pytest.raises(UserError, match="no runs"):
        report([], "md")
    with pytest.raises(UserError, match="no run folder at"):
        report([tmp_path / "gone"], "md")


def test_what_expansions_cost_is_a_table_of_its_own(tmp_path, runs, write, tables):
    assert "What expanding" not in report(runs)
    for seed in (1, 2):
        counts = {"examples": 20, "expand_answers": 40, "expand_parse_failures": 5 * seed,
                  "expand_prompt_tokens": 24_680, "expand_answer_tokens": 110}  # fmt: skip
        seconds = {"rank": 8.0, "expand_llm": 6.0 * seed, "expand_anchor": 0.1}
        folder = write(tmp_path / f"e{seed}", "pbr", answers(4, 0.5), seed=seed)
        change(folder, counts=counts, seconds=seconds)
    costs = tables(report([*runs, tmp_path / "e1", tmp_path / "e2"]))[2]
    assert costs[1:] == [["pbr", "18.8%", "2", "1,234", "5.5", "0.4", "0.45", "0", "0.005", "0"]]


def test_what_prompts_held_is_a_table(tmp_path, runs, write, tables):
    assert "What stood in the prompt" not in report(runs)
    for seed, tokens in ((1, 9_000), (2, 1_000)):
        folder = write(tmp_path / f"p{seed}", "bm25", answers(4, 0.5), seed=seed)
        counts = {"examples": 20, "shown_tokens": tokens, "shown_documents": 30}
        change(folder, counts=counts, seconds={"rank": 0.4})
    held = tables(report([*runs, tmp_path / "p1", tmp_path / "p2"]))[2]
    assert held[1:] == [["bm25", "1.5", "250", "20"]]
    change(folder, counts={"examples": 20, "shown_tokens": tokens})  # as in a run that shows none
    assert tables(report([*runs, folder]))[2][1:] == [["bm25", "0", "50", "20"]]


def test_answers_that_could_not_be_read_are_told_with_their_share(tmp_path: Path, write):
    for seed, unread in ((1, 3), (2, 6)):
        folder = write(tmp_path / f"r{seed}", "dense", answers(seed, 0.5), seed=seed)
        change(folder, counts={"examples": N, "unscored": 4, "unreadable_answers": unread})
    text = report([tmp_path / "r1", tmp_path / "r2"])
    assert "dense: 9 of 40 answers (22.5%) name no label or number, hold no state, or have no text" in text
    change(folder, counts={"examples": N, "unscored": 4, "unreadable_answers": 0})
    assert "name no label" not in report([folder])


def test_a_row_that_fell_back_in_more_than_a_fifth_of_its_questions_says_so(tmp_path: Path, write, tables):
    def run(system: str, seed: int, fell: int) -> Path:
        counts = {"examples": 20, "expand_answers": 40, "expand_parse_failures": fell + 1,
                  "expand_fallbacks": fell, "expand_failures_utterances": fell,
                  "expand_failures_reasoning": 1}  # fmt: skip
        folder = write(tmp_path / f"{system}{seed}", system, answers(seed, 0.5), seed=seed)
        return change(folder, counts=counts)

    none = write(tmp_path / "none", "none", answers(9, 0.5))
    text = report([none, run("pbr", 1, 4), run("pbr", 2, 5), run("mill", 1, 4)])  # 9 of 40, and 4 of 20
    values, _, costs, *_ = tables(text)
    assert [row[0] for row in values[1:]] == ["none", "pbr †", "mill"]
    assert "† pbr: an answer of the language model could not be used in 9 of 40 questions (22.5%)" in text
    assert text.count("†") == 2
    assert [row[1] for row in costs[1:]] == [
        "13.8% (utterances 9, reasoning 2)", "12.5% (utterances 4, reasoning 1)",
    ]  # fmt: skip


def test_differences_can_be_from_any_system(tmp_path: Path, write):
    runs = [write(tmp_path / name, name, answers(n, 0.1 * n)) for n, name in ((2, "zero_shot"), (3, "dense"))]
    assert "Difference from zero_shot" in report(runs)
    assert "Difference from dense" in report(runs, reference="dense")
    with pytest.raises(
        UserError, match="no run is of the reference 'bm25'; there are the systems 'zero_shot', 'dense'"
    ):
        report(runs, reference="bm25")


def test_stages_that_were_made_elsewhere_are_told_once_for_all_runs_alike(tmp_path: Path, write):
    """At another commit, with other versions, by two processes in turn, or by a version that did not say."""
    here = {"commit": "f" * 12, "versions": {"jax": "0.11", "numpy": "2"}}
    other = {"commit": "a" * 12, "versions": {"jax": "0.10", "numpy": "2"}}
    told = [{"rank": [other], "embed": [other]}] * 6 + [{"rank": [other, here], "data": []}, {}]
    runs = [
        write(tmp_path / f"r{i}", f"s{i}", answers(i, 0.5), fingerprint={**here, "stages": stages})
        for i, stages in enumerate(told)
    ]
    text = report(runs)
    some = ", ".join(str(run) for run in runs[:4])
    same, both = "a" * 12 + " with jax 0.10", "f" * 12
    assert f"{some} and 2 more: computed rank, embed at commit {same}; the rest at commit {both}." in text
    assert f"{runs[6]}: computed rank at commit {same} and commit {both}; data at an unrec" in text
    assert text.count("computed rank") == 2


def streamed(path: Path, size: int) -> None:
    """Makes a run a stream of blocks of that size: what it recorded of each question, block by block."""
    lines = [json.loads(line) for line in (path / "predictions.jsonl").read_text().splitlines()]
    errors = [line["metrics"]["mae"] for line in lines]
    blocks = [
        {"block": start // size, "start": start, "end": min(start + size, N), "n": size,
         "metrics": {"mae": float(np.mean(errors[start : start + size]))},
         "running": {"mae": float(np.mean(errors[: start + size]))}}
        for start in range(0, N, size)
    ]  # fmt: skip
    change(path, blocks=blocks)


def test_streams_block_by_block_beside_each_other(runs, tables):
    for path, size in zip(runs[:2], (10, 10)):
        streamed(path, size)
    found = next(table for table in tables(report(runs, "md")) if table[0][0] == "questions")
    errors = text_metric("mae").statistics(answers(1, 0.6), TARGETS)[:, 0]
    assert found[0] == ["questions", "dense retrieve.k=4", "zero_shot"]  # the third is no stream
    assert [row[0] for row in found[1:]] == ["1 to 10", "11 to 20", "21 to 24"]
    wanted = [(errors[a:b].mean(), errors[:b].mean()) for a, b in ((0, 10), (10, 20), (20, 24))]
    assert [row[1] for row in found[1:]] == [f"{block:.4f} ({so_far:.4f})" for block, so_far in wanted]
    page = report(runs, "html")
    assert "mae over the stream: dots are blocks, lines are all questions so far" in page


def test_streams_of_other_sizes_and_of_many_blocks(runs, tables):
    streamed(runs[0], 1)
    streamed(runs[1], 12)
    text = report(runs[:2], "md")
    found = next(table for table in tables(text) if table[0][0] == "questions")
    assert len(found) == 1 + 20
    assert "20 of 26 blocks" in text
    assert found[-1][0] == "24 to 24"
    assert found[-1][2] == "–"
    assert not any(table[0][0] == "questions" for table in tables(report(runs[2:], "md")))


def test_rows_are_chosen_by_name_and_the_reference_stays(tmp_path: Path, write, tables):
    runs = [write(tmp_path / name, name, answers(n, 0.1 * n)) for n, name in enumerate("abcd", 2)]
    text = report(runs, rows=["c"], reference="a")
    assert [row[0] for row in tables(text)[0][1:]] == ["a", "c"]
    assert [row[0] for row in tables(report(runs, rows=["b", "d"]))[0][1:]] == ["b", "d"]
    with pytest.raises(UserError, match="no run is of the system 'x'; there are a, b, c, d"):
        report(runs, rows=["x"])


def test_csv_has_the_numbers_of_the_runs_and_of_the_comparison(tmp_path: Path, write):
    runs = [write(tmp_path / name, name, answers(n, 0.1 * n)) for n, name in ((2, "zero_shot"), (3, "dense"))]
    lines = list(csv.DictReader(io.StringIO(report(runs, "csv"))))
    known = {folder.name: json.loads((folder / "results.json").read_text())["metrics"] for folder in runs}
    assert {(one["run"], one["metric"]): float(one["value"]) for one in lines} == {
        (name, metric): value for name, metrics in known.items() for metric, value in metrics.items()
    }
    for one in lines:
        assert bool(one["reference"]) == (one["run"] == "dense")
        if one["reference"]:
            difference = known["dense"][one["metric"]] - known["zero_shot"][one["metric"]]
            assert float(one["difference"]) == pytest.approx(difference)
            assert float(one["difference_low"]) < difference < float(one["difference_high"])


def test_a_measure_that_a_row_lacks_has_a_reason(tmp_path: Path, write):
    full = write(tmp_path / "full", "full", answers(2, 0.5))
    name = next(iter(json.loads((full / "results.json").read_text())["metrics"]))
    silent = change(write(tmp_path / "silent", "silent", answers(2, 0.5)), metrics={})
    assert f"silent has no {name}" in report([full, silent])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_compiles_and_no_table_is_wider_than_the_text(runs, tmp_path: Path):
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{report(runs, 'latex')}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "File `booktabs.sty' not found" in done.stdout:
        pytest.skip("no booktabs")
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout
