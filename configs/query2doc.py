"""Query2doc: a generated passage that answers the query is appended to it (Wang et al., 2023)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="query2doc", expand=expand.Query2Doc(), retrieve=retrieve.Dense(k=5))
