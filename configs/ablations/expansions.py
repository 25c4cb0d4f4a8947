"""Every query expansion with the same dense retriever: the paper's Tables 1 and 2, and three more.

pbr-jax sweep configs/ablations/expansions.py --benchmark.name personabench --benchmark.root FOLDER
--benchmark.split noise_0.0 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import retrieve
from pbr_jax.sweeps import zipped

METHODS = ("none", "hyde", "query2term", "query2doc", "rewrite", "mill", "cot", "thinkqe", "rafe", "pbr")


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=5))


def sweep() -> Iterator[Overrides]:
    return zipped({"system": METHODS, "expand.method": METHODS})
