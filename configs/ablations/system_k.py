"""Retriever × number of documents: four retrievers, with one and with four documents in the prompt.

pbr-jax sweep configs/ablations/system_k.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.sweeps import grid, product, zipped

SYSTEMS = ("random", "recency", "bm25", "dense")


def get_config() -> Config:
    return Config()


def sweep() -> Iterator[Overrides]:
    return product(zipped({"system": SYSTEMS, "retrieve.method": SYSTEMS}), grid({"retrieve.k": [1, 4]}))
