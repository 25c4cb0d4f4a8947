"""Chain of thought: a step-by-step answer beside the query (Wei et al., 2022)."""

from pbr_jax.config import Config, Expand, Retrieve


def get_config() -> Config:
    return Config(system="cot", expand=Expand(method="cot"), retrieve=Retrieve(method="dense", k=5))
