"""Dense candidates, reranked by the language model's judgement of whether each one helps."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="pointwise", retrieve=retrieve.Dense(k=20), select=select.Pointwise(k=4))
