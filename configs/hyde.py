"""HyDE: the query's vector averaged with that of a hypothetical answer (Gao et al., 2023)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="hyde", expand=Expand(method="hyde"), retrieve=Retrieve(method="dense", k=5))
