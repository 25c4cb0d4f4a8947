"""Exact search, clusters and anchors, and the engines of large collections (`pbr_jax.index.engines`)."""

from pbr_jax.index.base import Engine, Found, Matrix, Rows
from pbr_jax.index.exact import ExactIndex
from pbr_jax.index.top_k import nearest

__all__ = ["Engine", "ExactIndex", "Found", "Matrix", "Rows", "nearest"]
