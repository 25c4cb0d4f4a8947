"""Personalized retrieval-augmented generation in JAX: published systems as configurations of one pipeline.

A language model imitates a person's writing better if its prompt contains what that person wrote before.
A run chooses such documents with one method, answers the questions of a benchmark and measures the answers::

    import pbr_jax

    dense = pbr_jax.run("dense", k=3, limit=10)          # a config by name, on synthetic users
    nothing = pbr_jax.run("zero_shot", limit=10)         # no documents in the prompt
    dense.metrics["target_nll"], dense.intervals         # numbers; a notebook shows `dense` as a table
    dense.predictions(), dense.texts()                   # pandas frames with a row for each question
    pbr_jax.compare(dense, nothing)                      # paired differences with intervals
    pbr_jax.report(dense, nothing, format="html")        # the page that `pbr-jax report` writes

    pbr_jax.run("bm25", data="mine", k=4)                # a folder that `pbr-jax data import` wrote
    pbr_jax.run("bm25", data=frame, columns={"user": "customer", "input": "ticket", "output": "reply"})
    pbr_jax.run("bm25", data="LaMP_7", benchmark="lamp_7", limit=100)
    pbr_jax.run("dense", overrides={"retrieve.index": "exact"}, seed=1)
    pbr_jax.import_table("tickets.csv", "mine")          # writes a folder of data, which you can edit
    pbr_jax.check("mine", minutes=5)                     # does showing users' own history help?

    system = pbr_jax.open(dense.path)                    # loads a finished run
    system.ask("9", "What will you bring to the lake?")  # a Reply: text, documents, profile
    system.add("9", ["I never leave without tea."])      # the next question can use it

`pbr-jax configs` lists the configs, `pbr_jax.methods` contains the methods, and `pbr_jax.Config` has all
fields. Names are imported when they are first used, so `import pbr_jax` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbr_jax.api import check as check
    from pbr_jax.api import import_table as import_table
    from pbr_jax.api import report as report
    from pbr_jax.api import run as run
    from pbr_jax.base.types import Candidate as Candidate
    from pbr_jax.base.types import Document as Document
    from pbr_jax.base.types import Example as Example
    from pbr_jax.base.types import Model as Model
    from pbr_jax.base.types import UserError as UserError
    from pbr_jax.config import Config as Config
    from pbr_jax.experiment.learned_state import backward_transfer as backward_transfer
    from pbr_jax.experiment.opening import ask as ask
    from pbr_jax.experiment.opening import open as open
    from pbr_jax.experiment.results import Comparison as Comparison
    from pbr_jax.experiment.results import Results as Results
    from pbr_jax.experiment.results import compare as compare
    from pbr_jax.exporting.export import export as export
    from pbr_jax.sweeps.launcher import sweep as sweep
    from pbr_jax.system import System as System

__version__ = "0.1.0"

_NAMES = {
    "config": ("Config",),
    "exporting.export": ("export",),
    "experiment.results": ("Comparison", "Results", "compare"),
    "api": ("check", "import_table", "report", "run"),
    "experiment.learned_state": ("backward_transfer",),
    "sweeps.launcher": ("sweep",),
    "experiment.opening": ("ask", "open"),
    "system": ("System",),
    "base.types": ("Candidate", "Document", "Example", "Model", "UserError"),
}

__all__ = [  # `help` shows these
    "Candidate",
    "Comparison",
    "Config",
    "Document",
    "Example",
    "Model",
    "Results",
    "System",
    "UserError",
    "ask",
    "backward_transfer",
    "check",
    "compare",
    "export",
    "import_table",
    "open",
    "report",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _NAMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
