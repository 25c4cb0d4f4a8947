"""Slot 1: what is searched for.

An expansion gives texts, which word retrievers search for, and one vector, where there is an encoder, which
dense retrievers search for. Methods of `written` ask a language model alone, those of `grounded` look at
the user's history too, and `pbr` does so in the user's manner. Where a model's answer cannot be read, the
query stands in its place.
"""

from pbr_jax.methods.expand.grounded import Mill, RaFe, ThinkQE
from pbr_jax.methods.expand.none import Nothing
from pbr_jax.methods.expand.pbr import PBR
from pbr_jax.methods.expand.written import CoT, HyDE, Query2Doc, Query2Term, Rewrite

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
