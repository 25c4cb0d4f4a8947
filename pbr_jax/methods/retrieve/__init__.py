"""Slot 3: retrieves candidates from the histories of the neighbours.

Every retriever scores only rows that `Store.visible` returns for this example and user, so dates and
ownership are checked before ranking. It returns the best `k` documents of each user. Scores are comparable
across users: BM25 indexes the documents of all users together, and recency orders all of them by time. Scores
of a neighbour's documents are multiplied by the neighbour's weight, which is 1 for the asking user.
"""

from pbr_jax.methods.retrieve.adapted import Adapted
from pbr_jax.methods.retrieve.bm25 import BM25, BM25Lamp
from pbr_jax.methods.retrieve.centred import Centred
from pbr_jax.methods.retrieve.dense import Dense
from pbr_jax.methods.retrieve.external import External
from pbr_jax.methods.retrieve.fused import Fused
from pbr_jax.methods.retrieve.luf import Luf
from pbr_jax.methods.retrieve.none import Nothing
from pbr_jax.methods.retrieve.random import Random
from pbr_jax.methods.retrieve.recency import Recency
from pbr_jax.methods.retrieve.summaries import Summaries
from pbr_jax.methods.retrieve.tuned import Tuned
from pbr_jax.methods.retrieve.two_stage import TwoStage

METHODS = (
    Nothing, Random, Recency, BM25, BM25Lamp, Dense, Fused, Centred, Luf, Adapted, Summaries, Tuned, TwoStage,
    External,
)  # fmt: skip

__all__ = [
    "BM25",
    "METHODS",
    "Adapted",
    "BM25Lamp",
    "Centred",
    "Dense",
    "External",
    "Fused",
    "Luf",
    "Nothing",
    "Random",
    "Recency",
    "Summaries",
    "Tuned",
    "TwoStage",
]
