"""ThinkQE: passages written in rounds, each after a look at what the last ones found (Lei et al., 2025)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="thinkqe", expand=Expand(method="thinkqe"), retrieve=Retrieve(method="dense", k=5))
