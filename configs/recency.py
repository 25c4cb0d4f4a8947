"""The newest documents of the user's history."""

from pbr_jax.config import Config, Retrieve


def get_config() -> Config:
    return Config(system="recency", retrieve=Retrieve(method="recency"))
