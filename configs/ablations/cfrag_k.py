"""CFRAG with 1 to 5 documents from each user, and as many in the prompt (k in the paper's Figure 9).

pbr-jax sweep configs/ablations/cfrag_k.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.sweeps import zipped


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    return zipped({"retrieve.k": range(1, 6), "select.k": range(1, 6)})
