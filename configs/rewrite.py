"""Query rewriting: the language model rewrites the query for a search engine (Ma et al., 2023)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="rewrite", expand=expand.Rewrite(), retrieve=retrieve.Dense(k=5))
