"""The effect of query expansions on answers: exact match, as in the paper's Table 8.

pbr-jax sweep configs/ablations/pbr_answers.py --benchmark.name longmemeval --benchmark.root FILE
--benchmark.split STEM --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.sweeps import zipped

METHODS = ("none", "hyde", "query2term", "mill", "cot", "thinkqe", "pbr")


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=5), generate=generate.Ipa())


def sweep() -> Iterator[Overrides]:
    return zipped({"system": METHODS, "expand.method": METHODS})
