"""ThinkQE: passages written in rounds, each after a look at what the last ones found (Lei et al., 2025)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="thinkqe", expand=expand.ThinkQE(), retrieve=retrieve.Dense(k=5))
