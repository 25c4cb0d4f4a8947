"""ThinkQE: passages written in rounds, each after reading the documents found so far (Lei et al., 2025)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="thinkqe", expand=expand.ThinkQE(), retrieve=retrieve.Dense(k=5))
