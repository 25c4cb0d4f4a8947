"""Slot 1: expands the query.

An expansion returns texts, for retrievers by words, and, if there is an encoder, a vector for dense
retrievers. Methods in `written` only prompt a language model. Those in `grounded` and `pbr` also read the
user's history. If the model's answer cannot be parsed, the query is used instead.
"""

from pbr_jax.methods.expand.none import Nothing as Nothing
from pbr_jax.methods.expand.pbr import PBR as PBR
from pbr_jax.methods.expand.written import CoT as CoT
from pbr_jax.methods.expand.written import HyDE as HyDE
from pbr_jax.methods.expand.written import Mill as Mill
from pbr_jax.methods.expand.written import Query2Doc as Query2Doc
from pbr_jax.methods.expand.written import Query2Term as Query2Term
from pbr_jax.methods.expand.written import RaFe as RaFe
from pbr_jax.methods.expand.written import Rewrite as Rewrite
from pbr_jax.methods.expand.written import ThinkQE as ThinkQE

METHODS = (Nothing, HyDE, Query2Term, Query2Doc, Rewrite, CoT, Mill, ThinkQE, RaFe, PBR)
