"""BM25 over the user's history as in LaMP's code, which splits texts at white space.

It is for comparison with published numbers. The baseline to beat is configs/bm25.py.
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="bm25_lamp", retrieve=retrieve.BM25Lamp(k1=1.5, b=0.75, epsilon=0.25))
