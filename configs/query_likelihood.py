"""Dense candidates, reranked by the likelihood of the question after each of them (UPR)."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(
        system="query_likelihood", retrieve=retrieve.Dense(k=20), select=select.QueryLikelihood(k=4)
    )
