"""Memory of dialogues without a judge: simple practical baselines, and our methods.

Every row has 512 tokens for the documents and the question, except for the whole history, which has 2,048.
Rows over sessions show the best session, cut to this budget; rows over passages show the best six passages.
"stem" rows need PyStemmer (`pip install 'pbr-jax[stem]'`). "shared words" adds the idf of the words that a
session shares with the question, however often and however long the session is: BM25 without saturation and
length. A plain count of matches is no method here. Measure evidence recall on all questions, and likelihoods
and answers on a sample of them:

pbr-jax sweep ablations/memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 \
    --generate.method none --eval.likelihood off --out DIR
pbr-jax sweep ablations/memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 \
    --limit 200 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Eval, Overrides, Prompt
from pbr_jax.methods import generate, retrieve, select

_PASSAGES: Overrides = {"corpus.chunk": "words", "select.k": 6}
_STEM: Overrides = {"retrieve.analyser": "stem"}
_DATED: Overrides = {"corpus.front": "date"}
_FUSED: Overrides = {"retrieve.method": "fused", "retrieve.of.bm25.over": "documents", **_PASSAGES}
_LEVELS: Overrides = {**_FUSED, "retrieve.of": ("bm25", "bm25")}
_THREE: Overrides = {**_FUSED, "retrieve.of": ("bm25", "bm25", "dense")}
_MEMORY: Overrides = {
    **_THREE,
    "retrieve.of.bm25.analyser": "stem",
    "retrieve.of.bm25_2.analyser": "stem",
    "retrieve.of.bm25.question_words": "out",
    "retrieve.of.bm25_2.question_words": "out",
    "retrieve.of.dense.names": "i",
    "retrieve.weights": (1.0, 1.0, 2.0),
}
_WHOLE: Overrides = {
    "retrieve.k": 1000, "select.k": None, "prompt.max_tokens": 2048, "prompt.order": "best_last",
}  # fmt: skip
_ANCHOR: Overrides = {"expand.utterances": False, "expand.reasoning": False}
ROWS: dict[str, Overrides] = {
    "no memory": {"retrieve.method": "none"},
    "whole history": {"retrieve.method": "recency", **_WHOLE},
    "random": {"retrieve.method": "random"},
    "newest": {"retrieve.method": "recency"},
    "shared words": {"retrieve.k1": 0.0, "retrieve.b": 0.0},
    "bm25": {},
    "bm25, stem": _STEM,
    "bm25, passages": _PASSAGES,
    "bm25, passages, stem": {**_PASSAGES, **_STEM},
    "bm25, passages, dates": {**_PASSAGES, **_DATED},
    "bm25, passages, stem, dates": {**_PASSAGES, **_STEM, **_DATED},
    "bm25, sessions and passages": _LEVELS,
    "dense": {"retrieve.method": "dense"},
    "dense, passages": {"retrieve.method": "dense", **_PASSAGES},
    "fused": {"retrieve.method": "fused"},
    "fused, passages": _FUSED,
    "fused, passages, dates": {**_FUSED, **_DATED},
    "fused of three, passages": _THREE,
    "memory": _MEMORY,
    "fused, passages, mmr": {**_FUSED, "select.method": "mmr"},
    "pbr, anchor alone": {"retrieve.method": "dense", "expand.method": "pbr", **_ANCHOR},
    "pbr": {"retrieve.method": "dense", "expand.method": "pbr"},
    "two_stage": {"retrieve.method": "two_stage"},
    "evidence": {"select.method": "evidence"},
}


def get_config() -> Config:
    return Config(
        system="bm25",
        retrieve=retrieve.BM25(k=10),
        select=select.TopK(k=1),
        prompt=Prompt(max_tokens=512),
        generate=generate.Ipa(max_new_tokens=24),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        yield {"system": name, **row}
