"""Maximal marginal relevance: four of BM25's twenty best documents, each unlike the ones before."""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(system="mmr", retrieve=retrieve.BM25(k=20), select=select.MMR(k=4, balance=0.7))
