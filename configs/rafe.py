"""RaFe: of several rewrites the one whose documents explain the query best (Mao et al., 2024)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="rafe", expand=Expand(method="rafe"), retrieve=Retrieve(method="dense", k=5))
