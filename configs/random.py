"""Random documents of the user's history: the floor that a retriever must beat."""

from pbr_jax.config import Config, Retrieve


def get_config() -> Config:
    return Config(system="random", retrieve=Retrieve(method="random"))
