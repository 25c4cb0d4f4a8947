"""Personalized retrieval-augmented generation in JAX: five papers as configurations of one pipeline.

A name is imported when it is first used, so `import pbr_jax` takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

import pbr_jax.loaded  # noqa: F401 - records the sources of what is imported from now on

if TYPE_CHECKING:
    from pbr_jax.config import Config as Config
    from pbr_jax.experiment import Results as Results
    from pbr_jax.experiment import run as run
    from pbr_jax.exporting.export import export as export
    from pbr_jax.last_state import backward_transfer as backward_transfer
    from pbr_jax.opening import ask as ask
    from pbr_jax.opening import open as open
    from pbr_jax.sweeps import sweep as sweep
    from pbr_jax.system import System as System
    from pbr_jax.types import Candidate as Candidate
    from pbr_jax.types import Document as Document
    from pbr_jax.types import Example as Example
    from pbr_jax.types import Model as Model
    from pbr_jax.types import UserError as UserError

__version__ = "0.1.0"

_NAMES = {
    "config": ("Config",),
    "experiment": ("Results", "run"),
    "exporting.export": ("export",),
    "last_state": ("backward_transfer",),
    "opening": ("ask", "open"),
    "sweeps": ("sweep",),
    "system": ("System",),
    "types": ("Candidate", "Document", "Example", "Model", "UserError"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _NAMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return globals()[name]
