"""Anchors of PBR: PageRank with and without restarts, restarts near the query, the plain mean, none.

pbr-jax sweep configs/ablations/pbr_anchors.py --benchmark.name personabench --benchmark.root FOLDER
--benchmark.split noise_0.0 --expand.released FILE --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="pbr", expand=expand.PBR(), retrieve=retrieve.Dense(k=5))


def sweep() -> Iterator[Overrides]:
    yield {"system": "pagerank"}
    yield {"system": "pagerank without restarts", "expand.damping": 1.0, "expand.iterations": 50}
    yield {"system": "restarts near the query", "expand.anchor": "query"}
    yield {"system": "mean", "expand.anchor": "mean"}
    yield {"system": "no anchor", "expand.anchor": "none"}
