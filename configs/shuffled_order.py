"""Dense retrieval whose documents stand in the prompt in random order: what is the order worth?"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve
from pbr_jax.options import Prompt


def get_config() -> Config:
    return Config(system="shuffled_order", retrieve=retrieve.Dense(k=4), prompt=Prompt(order="random"))
