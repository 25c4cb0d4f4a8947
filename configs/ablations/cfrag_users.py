"""CFRAG with other users as neighbours (Figure 5): random users, the next m nearest, or the m nearest.

pbr-jax sweep configs/ablations/cfrag_users.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    yield {"system": "cfrag, random users", "neighbours.method": "random"}
    yield {"system": "cfrag, users m to 2m", "neighbours.skip": get_config().neighbours.m}
    yield {"system": "cfrag"}
