"""The baselines: no documents, random, newest, LaMP's BM25, BM25 and dense, with four documents each.

pbr-jax sweep configs/ablations/baselines.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import retrieve
from pbr_jax.sweeps import zipped

SYSTEMS = ("zero_shot", "random", "recency", "bm25_lamp", "bm25", "dense")


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=4))


def sweep() -> Iterator[Overrides]:
    return zipped({"system": SYSTEMS, "retrieve.method": ("none", *SYSTEMS[1:])})
