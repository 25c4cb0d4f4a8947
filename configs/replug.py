"""REPLUG: every document in a prompt of its own, and the distributions of the next token mixed."""

from pbr_jax.config import Config
from pbr_jax.methods import generate, retrieve


def get_config() -> Config:
    return Config(system="replug", retrieve=retrieve.Dense(k=4), generate=generate.Replug())
