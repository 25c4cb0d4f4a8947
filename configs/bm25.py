"""BM25 over the user's history, on lower-cased words without punctuation, with LaMP's parameters."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="bm25", retrieve=retrieve.BM25(k1=1.5, b=0.75, epsilon=0.25))
