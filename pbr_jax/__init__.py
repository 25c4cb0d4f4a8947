"""Personalized retrieval-augmented generation in JAX: five papers as configurations of one pipeline.

What stands here is imported when it is first used, so that `import pbr_jax` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

import pbr_jax.loaded  # noqa: F401 - records the sources of what is imported from now on

if TYPE_CHECKING:
    from pbr_jax.config import Config
    from pbr_jax.experiment import Results, run
    from pbr_jax.opening import ask, open
    from pbr_jax.sweeps import sweep
    from pbr_jax.system import System
    from pbr_jax.types import Candidate, Document, Example, Model, UserError

__version__ = "0.1.0"

_MODULES = {
    "Candidate": "types",
    "Config": "config",
    "Document": "types",
    "Example": "types",
    "Model": "types",
    "Results": "experiment",
    "System": "system",
    "UserError": "types",
    "ask": "opening",
    "open": "opening",
    "run": "experiment",
    "sweep": "sweeps",
}

__all__ = [
    "Candidate",
    "Config",
    "Document",
    "Example",
    "Model",
    "Results",
    "System",
    "UserError",
    "ask",
    "open",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return globals()[name]
