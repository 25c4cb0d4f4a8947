"""Query2Term: keywords of a generated answer are appended to the query (Jagerman et al., 2023)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="query2term", expand=expand.Query2Term(), retrieve=retrieve.Dense(k=5))
