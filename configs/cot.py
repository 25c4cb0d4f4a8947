"""Chain of thought: a step-by-step answer is appended to the query (Wei et al., 2022)."""

from pbr_jax.config import Config
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    return Config(system="cot", expand=expand.CoT(), retrieve=retrieve.Dense(k=5))
