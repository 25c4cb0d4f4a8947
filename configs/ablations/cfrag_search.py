"""CFRAG's tuned values (section 5.1.4).

Temperature of the contrastive loss, weight of the user's preference.

pbr-jax sweep configs/ablations/cfrag_search.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.sweep import grid


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    return grid({"user_encoder.temperature": [0.01, 0.1, 1.0], "retrieve.alpha": [0.01, 0.1, 0.5, 1.0]})
