"""CFRAG with 1 to 6 users, the asking user included (m in the paper's Figure 8).

pbr-jax sweep configs/ablations/cfrag_m.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.sweeps import grid


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    return grid({"neighbours.m": range(1, 7)})
