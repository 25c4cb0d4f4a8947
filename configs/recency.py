"""The newest documents of the user's history."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="recency", retrieve=retrieve.Recency())
