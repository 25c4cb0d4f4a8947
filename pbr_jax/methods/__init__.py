"""The methods: `methods/<slot>/<method>.py` holds a method's options, what it needs, and how it computes.

Each slot's package lists its classes; a config takes these, or a class of your own
(docs/tutorials/new_method.md).
"""

from pbr_jax.methods import expand, generate, neighbours, retrieve, select

METHODS = {
    "expand": expand.METHODS,
    "neighbours": neighbours.METHODS,
    "retrieve": retrieve.METHODS,
    "select": select.METHODS,
    "generate": generate.METHODS,
}

__all__ = ["METHODS", "expand", "generate", "neighbours", "retrieve", "select"]
