"""Dense candidates, reranked by whether the language model says of each that it helps."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="pointwise", retrieve=retrieve.Dense(k=20), select=select.Pointwise(k=4))
