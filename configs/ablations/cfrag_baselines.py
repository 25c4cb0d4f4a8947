"""CFRAG and its baselines: the paper's Table 2. Every prompt has five documents, except zero-shot's.

The paper's BGE is the row "dense" with `--encoder.model FOLDER`. ROPG is a retriever tuned on feedback,
without similar users, user vectors and reranker.

pbr-jax sweep ablations/cfrag_baselines --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

OWN: Overrides = {"neighbours.method": "self", "neighbours.m": 1, "select.method": "top_k"}
PLAIN: Overrides = {**OWN, "collaboration": "none"}


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    yield {"system": "zero_shot", "retrieve.method": "none", **PLAIN}
    for method in ("random", "recency", "bm25_lamp", "dense"):
        yield {"system": method, "retrieve.method": method, **PLAIN}
    yield {
        "system": "ropg",
        "collaboration": "signals",
        "feedback.candidates": 20,
        "retrieve.alpha": 0.0,
        "retrieve.distillation.loss": "forward_kl",
        **OWN,
    }
    yield {"system": "cfrag"}
