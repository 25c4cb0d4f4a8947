"""Slot 4: selects and orders the documents in the prompt."""

from pbr_jax.methods.select.bm25 import BM25, BM25Lamp
from pbr_jax.methods.select.cross_encoder import CrossEncoder
from pbr_jax.methods.select.evidence import Evidence
from pbr_jax.methods.select.icr import ICR
from pbr_jax.methods.select.late_interaction import LateInteraction
from pbr_jax.methods.select.mmr import MMR
from pbr_jax.methods.select.multi_level import MultiLevel
from pbr_jax.methods.select.oracle import Oracle
from pbr_jax.methods.select.pointwise import Pointwise
from pbr_jax.methods.select.purple import Purple
from pbr_jax.methods.select.query_likelihood import QueryLikelihood
from pbr_jax.methods.select.random import Random
from pbr_jax.methods.select.rankgpt import RankGPT
from pbr_jax.methods.select.recency_prior import RecencyPrior
from pbr_jax.methods.select.top_k import TopK
from pbr_jax.methods.select.tuned import Tuned

METHODS = (
    TopK,
    BM25,
    BM25Lamp,
    CrossEncoder,
    Tuned,
    Purple,
    QueryLikelihood,
    Pointwise,
    RankGPT,
    ICR,
    MultiLevel,
    LateInteraction,
    MMR,
    RecencyPrior,
    Oracle,
    Evidence,
    Random,
)

__all__ = [
    "BM25",
    "ICR",
    "METHODS",
    "MMR",
    "BM25Lamp",
    "CrossEncoder",
    "Evidence",
    "LateInteraction",
    "MultiLevel",
    "Oracle",
    "Pointwise",
    "Purple",
    "QueryLikelihood",
    "Random",
    "RankGPT",
    "RecencyPrior",
    "TopK",
    "Tuned",
]
