"""HyDE: the query's vector is averaged with that of a hypothetical answer (Gao et al., 2023)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="hyde", expand=expand.HyDE(), retrieve=retrieve.Dense(k=5))
