"""Memory of dialogues without a judge: simple practical baselines, and our methods.

Every row has 512 tokens for the documents and the question, except for the whole history, which has 2,048.
Rows over sessions show the best session, cut to this budget; rows over passages show the best six passages.
Measure evidence recall on all questions, and likelihoods and answers on a sample of them:

pbr-jax sweep ablations/memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 \
    --generate.method none --eval.likelihood off --out DIR
pbr-jax sweep ablations/memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 \
    --limit 200 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Eval, Overrides, Prompt
from pbr_jax.methods import generate, retrieve, select

_PASSAGES: Overrides = {"corpus.chunk": "words", "select.k": 6}
_FUSED: Overrides = {"retrieve.method": "fused", "retrieve.of.bm25.over": "documents", **_PASSAGES}
_WHOLE: Overrides = {
    "retrieve.k": 1000, "select.k": None, "prompt.max_tokens": 2048, "prompt.order": "best_last",
}  # fmt: skip
_ANCHOR: Overrides = {"expand.utterances": False, "expand.reasoning": False}
ROWS: dict[str, Overrides] = {
    "no memory": {"retrieve.method": "none"},
    "whole history": {"retrieve.method": "recency", **_WHOLE},
    "random": {"retrieve.method": "random"},
    "newest": {"retrieve.method": "recency"},
    "bm25": {},
    "dense": {"retrieve.method": "dense"},
    "dense, passages": {"retrieve.method": "dense", **_PASSAGES},
    "fused": {"retrieve.method": "fused"},
    "fused, passages": _FUSED,
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
