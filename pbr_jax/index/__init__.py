"""Vector indices: exact, per user, and ScaNN; every search says whose documents it may return."""

from pbr_jax.index.base import EVERYONE, Everyone, Found, Owners, Users
from pbr_jax.index.exact import ExactIndex
from pbr_jax.index.per_user import Hits, PerUserIndex, Scope
from pbr_jax.index.scann import Effort, ScannIndex

__all__ = [
    "EVERYONE",
    "Effort",
    "Everyone",
    "ExactIndex",
    "Found",
    "Hits",
    "Owners",
    "PerUserIndex",
    "ScannIndex",
    "Scope",
    "Users",
]
