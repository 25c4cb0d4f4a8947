"""Slot 4: selects and orders the documents in the prompt."""

from pbr_jax.methods.select.behind import MMR, RecencyPrior
from pbr_jax.methods.select.by_score import BM25, BM25Lamp, LateInteraction, Random, TopK
from pbr_jax.methods.select.ceilings import Evidence, Oracle
from pbr_jax.methods.select.cross_encoder import CrossEncoder, Tuned
from pbr_jax.methods.select.judging import ICR, MultiLevel, Pointwise, QueryLikelihood, RankGPT
from pbr_jax.methods.select.purple import Purple

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
