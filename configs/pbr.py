"""PBR: the query is personalized before retrieval (Zhang et al., 2025).

The language model writes utterances and reasoning, unless `--expand.released FILE` contains them.
"""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="pbr", expand=expand.PBR(), retrieve=retrieve.Dense(k=5))
