"""configs/cfrag_small.py without each of its modules, and the baselines.

Every prompt has 3 documents. Nothing is decoded, so rows are compared by `target_nll`. For all of the data,
use configs/ablations/cfrag_modules.py, cfrag_users.py and baselines.py.

pbr-jax sweep configs/ablations/cfrag_small.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Eval, Overrides
from pbr_jax.methods import generate

HERE = Path(__file__).parent
OTHERS = {"neighbours.method": "random", "neighbours.own": False, "neighbours.m": 6, "select.method": "top_k"}
OWN = {"neighbours.method": "self", "neighbours.m": 1, "collaboration": "none", "select.method": "top_k"}


def get_config() -> Config:
    config = runpy.run_path(str(HERE.parent / "cfrag_small.py"))["get_config"]()
    return dataclasses.replace(config, generate=generate.Nothing(), eval=Eval(likelihood="on"))


def sweep(config: Config | None = None) -> Iterator[Overrides]:
    for method in ("none", "random", "recency", "bm25_lamp", "bm25", "dense"):
        yield {"system": "zero_shot" if method == "none" else method, "retrieve.method": method, **OWN}
    yield {"system": "others_random", "retrieve.method": "random", "retrieve.k": 1, **OTHERS}
    yield {"system": "ropg", "retrieve.alpha": 0.0, "retrieve.distillation.loss": "forward_kl", **OWN,
           "feedback.candidates": 12, "collaboration": "signals"}  # fmt: skip
    yield from runpy.run_path(str(HERE / "cfrag_modules.py"))["sweep"](config or get_config())
