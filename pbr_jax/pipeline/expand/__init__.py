"""Slot 1: what is searched for."""

from pbr_jax.config import Config
from pbr_jax.pipeline.pipeline import Examples, Expand, Query, Resources


def none(config: Config, resources: Resources) -> Expand:
    """The query as it is."""

    def expand(examples: Examples) -> list[Query]:
        return [Query((example.query,)) for example in examples]

    return expand


METHODS = {"none": none}
