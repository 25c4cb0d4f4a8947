"""Models as pairs of pure functions, `Model(init, apply)`, over nested dicts of arrays.

A family is a module: `user_transformer.user_transformer(config)` builds a model, and `load(folder)`, where a
family has pretrained weights, reads it from a folder in Hugging Face's format.
"""

from pbr_jax.base import lazy

__getattr__, __dir__, __all__ = lazy.names(__name__, __file__)
