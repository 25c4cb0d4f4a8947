"""The language model alone: no documents of the user enter the prompt."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="zero_shot", retrieve=retrieve.Nothing())
