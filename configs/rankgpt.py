"""Dense candidates, reranked as a list by the language model, which writes their order (RankGPT)."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="rankgpt", retrieve=retrieve.Dense(k=20), select=select.RankGPT(k=4))
