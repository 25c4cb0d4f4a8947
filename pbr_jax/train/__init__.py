"""Training: one state, one step, one loop for everything that is trained."""

from pbr_jax.base import lazy

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)
