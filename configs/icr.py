"""Dense candidates, reranked by the attention that the question's tokens pay them (ICR)."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="icr", retrieve=retrieve.Dense(k=20), select=select.ICR(k=4))
