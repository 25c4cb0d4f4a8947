"""PBR: the query personalized before retrieval (Zhang et al., 2025).

The language model writes utterances and reasoning, unless `--expand.released FILE` has them.
"""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="pbr", expand=Expand(method="pbr"), retrieve=Retrieve(method="dense", k=5))
