"""MILL: generated sub-queries with passages, and retrieved documents that agree (Jia et al., 2023)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="mill", expand=expand.Mill(), retrieve=retrieve.Dense(k=5))
