"""Dense retrieval in the user's history with any BERT-family encoder (`encoder.model`)."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="dense", retrieve=retrieve.Dense())
