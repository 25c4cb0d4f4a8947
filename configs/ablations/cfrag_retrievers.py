"""CFRAG with other retrievers and rerankers (Figure 6): both LaMP's BM25, both untuned, or both tuned.

The untuned reranker needs a pretrained reranker as `select.model`. The default is not one; its row is called
"no reranker".

pbr-jax sweep configs/ablations/cfrag_retrievers.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
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
    yield {"system": "cfrag, bm25_lamp", "retrieve.method": "bm25_lamp", "select.method": "bm25_lamp"}
    judges = is_pretrained(getattr(select, "model", ""))
    name = "cfrag, untuned" if judges else "cfrag, untuned retriever, no reranker"
    untuned = "cross_encoder" if judges else "top_k"
    yield {"system": name, "retrieve.method": "dense", "select.method": untuned}
    yield {"system": "cfrag"}
