"""Vector indices: exact, per user, and ScaNN. `pbr_jax.corpus.search` selects one."""

from pbr_jax.index.base import Found, Matrix
from pbr_jax.index.exact import ExactIndex
from pbr_jax.index.per_user import nearest
from pbr_jax.index.scann import Effort, ScannIndex

__all__ = ["Effort", "ExactIndex", "Found", "Matrix", "ScannIndex", "nearest"]
