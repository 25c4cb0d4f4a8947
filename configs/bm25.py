"""BM25 over the user's history: lower-cased words without punctuation, LaMP's k1 and b, Lucene's idf."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(system="bm25", retrieve=retrieve.BM25(k1=1.5, b=0.75))
