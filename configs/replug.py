"""REPLUG: one prompt for each document, and a mixture of their next-token distributions."""

from pbr_jax.config import Config
from pbr_jax.methods import generate, retrieve


def get_config() -> Config:
    return Config(system="replug", retrieve=retrieve.Dense(k=4), generate=generate.Replug())
