"""Personalized retrieval-augmented generation in JAX: five papers as configurations of one pipeline."""

from pbr_jax.config import Config
from pbr_jax.run import Results, ask, run
from pbr_jax.sweep import sweep
from pbr_jax.types import Candidate, Document, Example, Model, UserError

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Config",
    "Document",
    "Example",
    "Model",
    "Results",
    "UserError",
    "ask",
    "run",
    "sweep",
]
