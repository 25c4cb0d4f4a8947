"""CFRAG without each of its modules: the rows of the paper's Table 3, and a control.

Rows: (0) all modules; (1) own history only; (2) users as means of their documents; (3) untuned retriever; (4)
retriever without users; (5) untuned reranker; (6) reranker without users. Row 5 needs a pretrained reranker
as `select.model`. With the default, a plain encoder, this row keeps the retriever's order and is called "no
reranker". The control is the reranker before training, with random heads: a tuned one must beat it.

pbr-jax sweep configs/ablations/cfrag_modules.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.methods.select.cross_encoder import is_pretrained


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep(config: Config | None = None) -> Iterator[Overrides]:
    select = (config or get_config()).select
    yield {"system": "cfrag"}
    yield {"system": "cfrag, own history", "neighbours.m": 1, "collaboration": "signals"}
    yield {"system": "cfrag, mean users", "neighbours.method": "mean"}
    yield {"system": "cfrag, untuned retriever", "retrieve.method": "dense"}
    yield {"system": "cfrag, retriever without users", "retrieve.alpha": 0.0}
    if is_pretrained(getattr(select, "model", "")):
        yield {"system": "cfrag, untuned reranker", "select.method": "cross_encoder"}
    else:
        yield {"system": "cfrag, no reranker", "select.method": "top_k"}
    yield {"system": "cfrag, reranker without users", "select.users": False}
    yield {"system": "cfrag, random reranker", "select.training.epochs": 0}
