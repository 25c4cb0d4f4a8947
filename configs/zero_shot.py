"""The language model alone: the prompt contains no documents of the user."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="zero_shot", retrieve=retrieve.Nothing())
