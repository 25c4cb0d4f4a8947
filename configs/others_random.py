"""Random documents of other users: the gain from examples of the task that are not the user's own."""

from pbr_jax.config import Config
from pbr_jax.methods import neighbours, retrieve, select


def get_config() -> Config:
    return Config(
        system="others_random",
        collaboration="text",
        neighbours=neighbours.Random(m=8, own=False),  # twice as many as are shown: some have written nothing
        retrieve=retrieve.Random(k=1),
        select=select.TopK(k=4),
    )
