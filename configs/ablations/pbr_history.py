"""The number of documents of the user's history that the language model reads: k1, the paper's Table 7.

pbr-jax sweep configs/ablations/pbr_history.py --benchmark.name longmemeval --benchmark.root FILE
--benchmark.split STEM --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import expand, retrieve
from pbr_jax.sweeps import grid


def get_config() -> Config:
    return Config(system="pbr", expand=expand.PBR(), retrieve=retrieve.Dense(k=5))


def sweep() -> Iterator[Overrides]:
    return grid({"expand.k1": [3, 5, 10]})
