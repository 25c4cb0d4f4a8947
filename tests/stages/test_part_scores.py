"""The scores of a candidate's parts go with it: into rankings on disk and into predictions."""

from dataclasses import replace
from pathlib import Path

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.experiment import evaluation as results
from pbr_jax.methods import expand, neighbours, retrieve, select
from pbr_jax.options import Eval
from pbr_jax.pipeline import RetrieveSlot, Tally
from pbr_jax.stages.rankings import Rankings, keep_rankings
from pbr_jax.system import System
from pbr_jax.tasks import released

NAMES = ("own", "other")


def test_parts_scores_are_kept_with_a_ranking_and_told_in_predictions(tmp_path: Path):
    histories = {name: tuple(Document(f"{name}{i}", name, f"rain {i}") for i in range(3)) for name in NAMES}
    build(tmp_path / "store.sqlite", [Example(n, n, "rain", "in", "t", histories[n]) for n in NAMES])
    store = Store(tmp_path / "store.sqlite")

    def scored(tally: Tally) -> RetrieveSlot:
        found = retrieve.BM25(k=2).slot(tally, store=store)

        def slot(examples, queries, users):
            """Parts for one of the users alone."""
            return [
                [replace(c, scores={"bm25": 0.1 + 1 / 3, "dense": -0.5} if u == "own" else {}) for c in r]
                for u, r in zip(NAMES, found(examples, queries, users), strict=True)
            ]

        return slot

    parts = {
        "store": store, "expand": expand.Nothing().slot, "neighbours": neighbours.Self().slot,
        "retrieve": scored, "select": select.TopK().slot,
    }  # fmt: skip
    system = System(parts)
    examples = list(store.examples())
    keep_rankings(tmp_path, examples, system)
    kept = list(Rankings(tmp_path).read(store, examples))
    assert kept == system.rank(examples)
    assert kept[0][0].scores == {"bm25": 0.1 + 1 / 3, "dense": -0.5}
    assert kept[1][0].scores == {}

    _, lines = results.evaluated(released("lamp_3"), store, results.Made(kept), Eval(resamples=10), seed=0)
    assert lines[0]["documents"][1]["scores"] == {"bm25": 0.1 + 1 / 3, "dense": -0.5}
    assert "scores" not in lines[1]["documents"][0]
