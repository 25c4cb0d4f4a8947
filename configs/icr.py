"""Dense candidates, reranked by the attention from the question's tokens to their tokens (ICR)."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="icr", retrieve=retrieve.Dense(k=20), select=select.ICR(k=4))
