"""RaFe: the one of several rewrites whose documents explain the query best (Mao et al., 2024)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="rafe", expand=expand.RaFe(), retrieve=retrieve.Dense(k=5))
