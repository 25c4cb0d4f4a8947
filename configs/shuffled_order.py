"""Dense retrieval whose documents stand in the prompt in random order: what is the order worth?"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="shuffled_order", retrieve=retrieve.Dense(k=4), select=select.Shuffled(k=4))
