"""R&R, LUF's baseline: forty dense candidates, each judged by the language model; five in the prompt."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="retrieve_rerank", retrieve=retrieve.Dense(k=40), select=select.Pointwise(k=5))
