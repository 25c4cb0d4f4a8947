"""Slot 3: retrieves candidates from the histories of the neighbours.

Every retriever scores only rows that `Store.visible` returns for this example and user, so dates and
ownership are checked before ranking. It returns the best `k` documents of each user. Scores are comparable
across users: BM25 indexes the documents of all users together, and recency orders all of them by time. Scores
of a neighbour's documents are multiplied by the neighbour's weight, which is 1 for the asking user.
"""

from pbr_jax.methods.retrieve.adapted import Adapted as Adapted
from pbr_jax.methods.retrieve.bm25 import BM25 as BM25
from pbr_jax.methods.retrieve.bm25 import BM25Lamp as BM25Lamp
from pbr_jax.methods.retrieve.centred import Centred as Centred
from pbr_jax.methods.retrieve.dense import Dense as Dense
from pbr_jax.methods.retrieve.external import External as External
from pbr_jax.methods.retrieve.fused import Fused as Fused
from pbr_jax.methods.retrieve.luf import Luf as Luf
from pbr_jax.methods.retrieve.none import Nothing as Nothing
from pbr_jax.methods.retrieve.random import Random as Random
from pbr_jax.methods.retrieve.recency import Recency as Recency
from pbr_jax.methods.retrieve.summaries import Summaries as Summaries
from pbr_jax.methods.retrieve.tuned import Tuned as Tuned
from pbr_jax.methods.retrieve.two_stage import TwoStage as TwoStage

METHODS = (
    Nothing, Random, Recency, BM25, BM25Lamp, Dense, Fused, Centred, Luf, Adapted, Summaries, Tuned, TwoStage,
    External,
)  # fmt: skip
