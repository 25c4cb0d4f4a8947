"""Random documents of the user's history: the floor that a retriever must beat."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="random", retrieve=retrieve.Random())
