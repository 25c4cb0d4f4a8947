"""Fusion on real sessions against rank_bm25, sentence-transformers and numpy, which share no code with it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.config import load, override
from pbr_jax.experiment.plan import Plan

CONFIG = Path(__file__).parents[1] / "configs" / "fused.py"
QUESTIONS = 200  # as many of them as the split has


@pytest.mark.long
def test_rankings_are_those_of_other_libraries_but_for_ties(real_data: Path, weights: None):
    rank_bm25 = pytest.importorskip("rank_bm25", exc_type=ImportError)
    sentence_transformers = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    from pbr_jax.models import pretrained

    root = real_data / "longmemeval_like_locomo"
    if not (root / "locomo_dev.json").is_file():
        pytest.skip(f"{root} has no locomo_dev.json")
    wanted = {
        "benchmark.name": "longmemeval", "benchmark.root": str(root), "benchmark.split": "locomo_dev",
        "generate.method": "none", "eval.likelihood": "off", "retrieve.k": 1000, "limit": QUESTIONS,
    }  # fmt: skip
    plan = Plan(override(load(CONFIG).config, wanted))
    store = plan.data.value
    examples = list(store.examples())
    model = sentence_transformers.SentenceTransformer(
        str(pretrained.locate("all-MiniLM-L6-v2")), device="cpu"
    )
    once = sorted({text for _, text in store.texts()})  # each question has its own copy of the sessions
    vectors = dict(zip(once, model.encode(once), strict=True))

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    for example, ranking in zip(examples, plan.ranked.value.read(store, examples), strict=True):
        rows = store.visible(example, example.user_id)
        texts = [text for _, text in store.texts(rows)]
        sparse = rank_bm25.BM25Okapi([words(text) for text in texts]).get_scores(words(example.query))
        dense = np.stack([vectors[text] for text in texts]) @ model.encode(example.query)
        table = np.stack([sparse, dense])
        total = ((table - table.mean(1, keepdims=True)) / table.std(1, keepdims=True)).sum(0)
        theirs = dict(zip(rows.tolist(), total, strict=True))
        assert {c.row for c in ranking} == set(theirs)
        np.testing.assert_allclose([c.score for c in ranking], [theirs[c.row] for c in ranking], atol=2e-3)
        own = [theirs[c.row] for c in ranking]  # falls, but where rounding decides
        assert np.all(np.diff(own) < 2e-3), json.dumps([example.id, own])
