"""The demo: four systems on synthetic users, with real small models, in a few minutes on two CPU cores.

pbr-jax sweep configs/quickstart.py --out runs/quickstart
"""

from collections.abc import Iterator

from pbr_jax.config import Benchmark, Config, Overrides, Retrieve
from pbr_jax.sweep import zipped

SYSTEMS = ("zero_shot", "recency", "bm25", "dense")


def get_config() -> Config:
    return Config(system="dense", limit=40, benchmark=Benchmark(name="synthetic"), retrieve=Retrieve(k=4))


def sweep() -> Iterator[Overrides]:
    methods = ("none", *SYSTEMS[1:])
    return zipped({"system": SYSTEMS, "retrieve.method": methods})
