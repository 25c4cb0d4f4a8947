"""MILL: sub-queries with passages and found documents, kept where they agree (Jia et al., 2023)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="mill", expand=Expand(method="mill"), retrieve=Retrieve(method="dense", k=5))
