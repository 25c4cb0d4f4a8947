"""The demo: four systems on synthetic users, with real small models, in a few minutes on two CPU cores.

pbr-jax sweep configs/quickstart.py --out runs/quickstart
"""

from collections.abc import Iterator

from pbr_jax.config import Benchmark, Config, Overrides
from pbr_jax.methods import retrieve
from pbr_jax.sweep import zipped

SYSTEMS = ("zero_shot", "recency", "bm25", "dense")


def get_config() -> Config:
    data = Benchmark(name="synthetic")
    return Config(system="dense", limit=40, benchmark=data, retrieve=retrieve.Dense(k=4))


def sweep() -> Iterator[Overrides]:
    methods = ("none", *SYSTEMS[1:])
    return zipped({"system": SYSTEMS, "retrieve.method": methods})
