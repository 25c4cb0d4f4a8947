"""Dense retrieval with the documents in random order in the prompt, to measure what the order is worth."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve
from pbr_jax.options import Prompt


def get_config() -> Config:
    return Config(system="shuffled_order", retrieve=retrieve.Dense(k=4), prompt=Prompt(order="random"))
