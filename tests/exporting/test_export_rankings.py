"""TREC's and ranx's files: trec_eval's formulas, ranx and ir_measures give our metrics."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.exporting.tables import strictly_falling
from pbr_jax.methods import retrieve
from pbr_jax.options import Retrieve

WORDS = ("tea", "cake", "rain", "lake", "boat", "snow")
TASK = """\
title = "Notes"
kind = "retrieval"
metrics = ["recall@2", "recall@5", "ndcg@5", "ndcg@10"]
"""


@dataclass(frozen=True, kw_only=True)
class Sometimes(retrieve.BM25):
    """BM25 that finds nothing for a question of a single word."""

    method: Literal["sometimes"] = "sometimes"  # type: ignore[assignment]

    def slot(self, tally, *, store):
        find = super().slot(tally, store=store)

        def some(examples, queries, neighbours):
            found = find(examples, queries, neighbours)
            return [own if " " in e.input else [] for e, own in zip(examples, found, strict=True)]

        return some


pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Runs BM25 over notes of few words, many of them alike; ids have spaces and signs of percent."""
    rng = np.random.default_rng(0)
    documents = [
        {"id": f"{user} {i}%", "user": user, "text": " ".join(rng.choice(WORDS, 3))}
        for user in ("ann", "bob")
        for i in range(30)
    ]
    questions: list[dict[str, Any]] = [
        {
            "id": f"q\u00a0{i}",
            "user": (user := ("ann", "bob")[i % 2]),
            "input": " ".join(rng.choice(WORDS, 2)),
            "relevant": [f"{user} {n}%" for n in rng.choice(30, rng.integers(1, 5), replace=False)],
        }
        for i in range(25)
    ]
    questions.append({"id": "new", "user": "ann", "input": "tea", "relevant": ["ann 1%"]})
    questions.append({"id": "unscored", "user": "ann", "input": "tea", "scored": False})

    def make(
        name: str = "run", relevant: Any = None, task: str = TASK, by: Retrieve = Sometimes(), **fields: Any
    ) -> Path:
        root = tmp_path / f"data {name}"
        root.mkdir()
        told = [{**q, **({} if relevant is None else {"relevant": relevant(q)})} for q in questions]
        for file, records in (("documents", documents), ("dev", told)):
            (root / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (root / "task.toml").write_text(task)
        place = {"benchmark.name": "own", "benchmark.root": str(root), "eval.resamples": 10}
        options = {**place, "generate.method": "none", "eval.likelihood": "off", **fields}
        pbr_jax.run(override(Config(system="bm25", retrieve=by), options), tmp_path / name)
        return tmp_path / name

    return make


def metrics(run: Path) -> dict[str, float]:
    return json.loads((run / "results.json").read_text())["metrics"]


def trec_eval(run: Path, qrels: Path) -> dict[str, float]:
    """recall and ndcg_cut as trec_eval -c computes them: sorted by score in single precision, ties by id."""
    ranked: dict[str, list[tuple[np.float32, str]]] = {}
    wanted: dict[str, set[str]] = {}
    for line in run.read_text().splitlines():
        question, _, document, _, score, _ = line.split()
        ranked.setdefault(question, []).append((np.float32(score), document))
    for line in qrels.read_text().splitlines():
        question, _, document, relevance = line.split()
        assert relevance == "1"
        assert document not in wanted.setdefault(question, set())
        wanted[question].add(document)
    return means({q: [d for _, d in sorted(own, reverse=True)] for q, own in ranked.items()}, wanted)


def means(ranked: Mapping[str, list[str]], wanted: Mapping[str, set[str]]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ("recall@2", "recall@5", "ndcg@5", "ndcg@10")}
    for question, relevant in wanted.items():
        for name, values in found.items():
            family, k = name.split("@")
            hits = [document in relevant for document in ranked.get(question, [])[: int(k)]]
            if family == "recall":
                values.append(sum(hits) / len(relevant))
            else:
                best = sum(1 / math.log2(i + 2) for i in range(min(len(relevant), int(k))))
                values.append(sum(hit / math.log2(i + 2) for i, hit in enumerate(hits)) / best)
    return {name: sum(values) / len(values) for name, values in found.items()}


def test_trec_eval_and_ir_measures_give_our_metrics(
    run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, out = run(), tmp_path / "new" / "trec"
    capsys.readouterr()
    assert main(["export", str(folder), "--format", "trec", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{out}\n"
    assert "1 questions that are not scored or have no relevant document are left out" in told.err
    assert "1 questions have no ranked document; count them as 0" in told.err
    assert sorted(path.name for path in out.iterdir()) == ["qrels.trec", "run.trec"]
    assert {oct(path.stat().st_mode)[-3:] for path in (out, *out.iterdir())} == {"700", "600"}
    ours = metrics(folder)
    assert 0.1 < ours["recall@5"] < 0.9  # not trivial
    assert trec_eval(out / "run.trec", out / "qrels.trec") == pytest.approx(ours, abs=1e-6)
    lines = [line.split(" ") for line in (out / "run.trec").read_text().splitlines()]
    assert {len(line) for line in lines} == {6}
    assert lines[0][0] == "q%C2%A00"
    assert {"%20" in line[2] and "%25" in line[2] for line in lines} == {True}
    assert {line[5] for line in lines} == {"bm25"}
    ir_measures = pytest.importorskip("ir_measures")
    measured = ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in ("R@2", "R@5", "nDCG@5", "nDCG@10")],
        ir_measures.read_trec_qrels(str(out / "qrels.trec")),
        ir_measures.read_trec_run(str(out / "run.trec")),
    )
    theirs = {str(name).replace("R@", "recall@").replace("nDCG", "ndcg"): v for name, v in measured.items()}
    assert theirs == pytest.approx(ours, abs=1e-6)


@pytest.mark.filterwarnings("ignore")  # of numba
def test_ranx_gives_our_metrics(run: Callable[..., Path], tmp_path: Path):
    folder = run()
    out = pbr_jax.export(folder, tmp_path / "ranx", "ranx")
    found, qrels = (json.loads((out / name).read_text()) for name in ("run.json", "qrels.json"))
    assert list(found) == list(qrels)
    assert found["new"] == {}
    ordered = {q: sorted(own, key=own.__getitem__, reverse=True) for q, own in found.items()}
    ours = metrics(folder)
    assert means(ordered, {q: set(own) for q, own in qrels.items()}) == pytest.approx(ours, abs=1e-6)
    ranx: Any = pytest.importorskip("ranx")
    theirs = ranx.evaluate(
        ranx.Qrels.from_file(str(out / "qrels.json"), kind="json"),
        ranx.Run.from_file(str(out / "run.json"), kind="json"),
        ["recall@2", "recall@5", "ndcg@5", "ndcg@10"],
    )
    assert theirs == pytest.approx(ours, abs=1e-6)


def test_scores_fall_and_keep_what_they_can():
    given = [2.5, 1.0, 1.0, 1.0 + 1e-9, 3.0, 0.25, -1e300, -1e300]
    documents = [{"id": str(i), "user_id": "ann", "score": score} for i, score in enumerate(given)]
    documents.insert(2, {"id": "0", "user_id": "ann", "score": 9.0})  # another passage of the first
    found = strictly_falling(documents, "ann")
    assert list(found) == [str(i) for i in range(8)]
    scores = np.array([*found.values()], np.float32)
    assert (np.diff(scores) < 0).all()
    assert scores.astype(float).tolist() == [*found.values()]
    assert [found["0"], found["1"], found["5"]] == [2.5, 1.0, 0.25]
    assert found["4"] == pytest.approx(1.0, abs=1e-6)
    assert strictly_falling([], "ann") == {}
    others = [{"id": "0", "user_id": user, "score": 1.0} for user in ("bob", "ann", "")]
    assert list(strictly_falling(others, "ann")) == ["bob\0000", "0"]


def test_passages_are_exported_as_their_documents(run: Callable[..., Path], tmp_path: Path):
    folder = run(**{"corpus.chunk": "words", "corpus.words": 1, "corpus.stride": 1, "corpus.pool": "none"})
    out = pbr_jax.export(folder, tmp_path / "trec", "trec")
    pairs = [line.split()[:3:2] for line in (out / "run.trec").read_text().splitlines()]
    assert len(pairs) == len({*map(tuple, pairs)})
    ours = metrics(folder)
    assert trec_eval(out / "run.trec", out / "qrels.trec") == pytest.approx(ours, abs=1e-6)


def test_alternatives_are_told(run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = run(relevant=lambda q: [q.get("relevant", ["ann 2%"])])  # one group: any of them will do
    pbr_jax.export(folder, tmp_path / "trec", "trec")
    assert "questions accept any one of several documents, which qrels cannot say" in capsys.readouterr().err


def test_what_has_no_rankings_or_no_relevant_documents(
    run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    answered = TASK.replace("retrieval", "generation").replace(
        '"recall@2", "recall@5", "ndcg@5", "ndcg@10"', '"token_f1"'
    )
    unknown = run("unknown", relevant=lambda q: [], task=answered)
    out = pbr_jax.export(unknown, tmp_path / "trec", "trec")
    assert "the data names no relevant documents, so there are no qrels" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["run.trec"]
    with pytest.raises(UserError, match=r"trec is there already; choose another --out"):
        pbr_jax.export(unknown, out, "trec")
    assert [path.name for path in out.iterdir()] == ["run.trec"]
    nothing = run("nothing", task=answered, by=retrieve.Nothing())
    for format in ("trec", "ranx"):
        assert main(["export", str(nothing), "--format", format, "--out", str(tmp_path / "b")]) == 2
        told = capsys.readouterr().err.splitlines()[-1]
        assert told == f"pbr-jax: error: {nothing}: it ranked no documents; export a run whose " \
            "retrieve.method is not none"  # fmt: skip
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".b", "b"))]
    for words, error in (
        ([], "a state is of one method; add --slot"),
        (["--slot", "retrieve"], "nothing in the slot 'retrieve' was trained"),
    ):
        assert main(["export", str(unknown), "--format", "state", "--out", str(tmp_path / "b"), *words]) == 2
        assert error in capsys.readouterr().err
    assert (
        main(["export", str(unknown), "--format", "csv", "--out", str(tmp_path / "b"), "--blocks", "2"]) == 2
    )
    assert "slot and blocks are of --format state" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--format", "csv", "--out", str(tmp_path / "b")]) == 2
    assert "holds several runs, want one of them" in capsys.readouterr().err
