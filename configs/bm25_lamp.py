"""BM25 over the user's history as LaMP's code runs it: words are what stands between white space.

For comparison with published numbers; configs/bm25.py is the baseline to beat.
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="bm25_lamp", retrieve=retrieve.BM25Lamp(k1=1.5, b=0.75, epsilon=0.25))
