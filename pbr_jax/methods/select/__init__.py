"""Slot 4: selects and orders the documents in the prompt."""

from pbr_jax.methods.select.behind import MMR as MMR
from pbr_jax.methods.select.behind import RecencyPrior as RecencyPrior
from pbr_jax.methods.select.by_score import BM25 as BM25
from pbr_jax.methods.select.by_score import BM25Lamp as BM25Lamp
from pbr_jax.methods.select.by_score import LateInteraction as LateInteraction
from pbr_jax.methods.select.by_score import Random as Random
from pbr_jax.methods.select.by_score import TopK as TopK
from pbr_jax.methods.select.ceilings import Evidence as Evidence
from pbr_jax.methods.select.ceilings import Oracle as Oracle
from pbr_jax.methods.select.cross_encoder import CrossEncoder as CrossEncoder
from pbr_jax.methods.select.cross_encoder import Tuned as Tuned
from pbr_jax.methods.select.judging import ICR as ICR
from pbr_jax.methods.select.judging import MultiLevel as MultiLevel
from pbr_jax.methods.select.judging import Pointwise as Pointwise
from pbr_jax.methods.select.judging import QueryLikelihood as QueryLikelihood
from pbr_jax.methods.select.judging import RankGPT as RankGPT
from pbr_jax.methods.select.purple import Purple as Purple

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
