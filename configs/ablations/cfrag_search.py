"""A search over the hyperparameters that CFRAG's paper tunes (section 5.1.4).

They are the temperature of the contrastive loss together with the weight of the user's preference; the
learning rates of towers and heads, the same for retriever and reranker; and the number of users.

pbr-jax sweep configs/ablations/cfrag_search.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.sweeps import grid, zipped


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "cfrag.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    yield from grid({"user_encoder.temperature": [0.01, 0.1, 1.0], "retrieve.alpha": [0.01, 0.1, 0.5, 1.0]})
    for rate in ("learning_rate", "head_learning_rate"):
        yield from zipped(
            {f"{slot}.training.optimizer.{rate}": [1e-3, 1e-4, 1e-5] for slot in ("retrieve", "select")}
        )
    yield from grid({"neighbours.m": range(1, 7)})
