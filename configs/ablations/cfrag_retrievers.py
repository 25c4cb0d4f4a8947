"""CFRAG with other retrievers and rerankers (Figure 6): BM25 as both, both untuned, both tuned.

pbr-jax sweep configs/ablations/cfrag_retrievers.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    yield {"system": "cfrag, bm25", "retrieve.method": "bm25", "select.method": "bm25"}
    yield {"system": "cfrag, untuned", "retrieve.method": "dense", "select.method": "top_k"}
    yield {"system": "cfrag"}
