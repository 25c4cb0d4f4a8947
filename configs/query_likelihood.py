"""Dense candidates, reranked by how probable the language model finds the question after each (UPR)."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(
        system="query_likelihood", retrieve=retrieve.Dense(k=20), select=select.QueryLikelihood(k=4)
    )
