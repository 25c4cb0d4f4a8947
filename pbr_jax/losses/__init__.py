"""Losses: pure functions of arrays. Each returns one value per example or token, without reduction."""

from pbr_jax.base import lazy

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)
