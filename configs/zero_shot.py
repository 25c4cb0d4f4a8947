"""The language model alone: no documents of the user enter the prompt."""

from pbr_jax.config import Config, Retrieve


def get_config() -> Config:
    return Config(system="zero_shot", retrieve=Retrieve(method="none"))
