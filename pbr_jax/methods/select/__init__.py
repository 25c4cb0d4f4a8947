"""Slot 4: the ordered documents that enter the prompt."""

from pbr_jax.methods.select.bm25 import BM25
from pbr_jax.methods.select.cross_encoder import CrossEncoder
from pbr_jax.methods.select.oracle import Oracle
from pbr_jax.methods.select.shuffled import Shuffled
from pbr_jax.methods.select.top_k import TopK
from pbr_jax.methods.select.tuned import Tuned

METHODS = (TopK, Shuffled, BM25, CrossEncoder, Tuned, Oracle)

__all__ = ["BM25", "METHODS", "CrossEncoder", "Oracle", "Shuffled", "TopK", "Tuned"]
