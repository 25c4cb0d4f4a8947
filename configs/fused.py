"""BM25 and dense retrieval combined: the sum of their scores, standardised within a question."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="fused", retrieve=retrieve.Fused(of=(retrieve.BM25(), retrieve.Dense())))
