"""Exact search, clusters and anchors, and the engines of large collections (`pbr_jax.index.engines`)."""

from pbr_jax.base import lazy

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)
