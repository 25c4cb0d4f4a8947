"""Slot 2: whose histories are searched."""

from pbr_jax.config import Config
from pbr_jax.pipeline.pipeline import Examples, FindNeighbours, Neighbour, Resources


def self_only(config: Config, resources: Resources) -> FindNeighbours:
    """The asking user alone."""

    def neighbours(examples: Examples) -> list[list[Neighbour]]:
        return [[Neighbour(example.user_id)] for example in examples]

    return neighbours


METHODS = {"self": self_only}
