"""Random documents of the user's history: a lower bound that every retriever should beat."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="random", retrieve=retrieve.Random())
