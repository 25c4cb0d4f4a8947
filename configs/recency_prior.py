"""Four of BM25's twenty best documents, with a preference for newer ones of a given half-life.

`--select.half_life learned` learns the half-life on training questions, with `--collaboration signals`.
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(
        system="recency_prior", retrieve=retrieve.BM25(k=20), select=select.RecencyPrior(k=4, half_life=30.0)
    )
