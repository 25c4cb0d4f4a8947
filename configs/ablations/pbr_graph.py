"""The graph of PBR's anchor: least cosine and number of edges, as in the paper's Figure 4.

pbr-jax sweep configs/ablations/pbr_graph.py --benchmark.name personabench --benchmark.root FOLDER
--benchmark.split noise_0.0 --expand.released FILE --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import expand, retrieve
from pbr_jax.sweeps import grid


def get_config() -> Config:
    return Config(system="pbr", expand=expand.PBR(), retrieve=retrieve.Dense(k=5))


def sweep() -> Iterator[Overrides]:
    return grid({"expand.theta": [0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85], "expand.k2": [3, 5, 10, 20, 50]})
