"""Slot 1: expands the query.

An expansion returns texts, for retrievers by words, and, if there is an encoder, a vector for dense
retrievers. Methods in `written` only prompt a language model. Those in `grounded` and `pbr` also read the
user's history. If the model's answer cannot be parsed, the query is used instead.
"""

from pbr_jax.methods.expand.none import Nothing
from pbr_jax.methods.expand.pbr import PBR
from pbr_jax.methods.expand.written import CoT, HyDE, Mill, Query2Doc, Query2Term, RaFe, Rewrite, ThinkQE

METHODS = (Nothing, HyDE, Query2Term, Query2Doc, Rewrite, CoT, Mill, ThinkQE, RaFe, PBR)

__all__ = [
    "METHODS",
    "PBR",
    "CoT",
    "HyDE",
    "Mill",
    "Nothing",
    "Query2Doc",
    "Query2Term",
    "RaFe",
    "Rewrite",
    "ThinkQE",
]
