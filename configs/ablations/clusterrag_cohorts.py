"""How well ClusterRAG's cohorts are separated: the paper's Table 10, without answers.

Read `silhouette` and `silhouette_without_noise`. The paper leaves users without a cluster out, which is the
second. Each question's true answer is scored, because a run needs something to score.

pbr-jax sweep ablations/clusterrag_cohorts --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Eval, Overrides, TunedGenerator
from pbr_jax.methods import generate


def get_config() -> Config:
    paper: Config = runpy.run_path(str(Path(__file__).parents[1] / "clusterrag.py"))["get_config"]()
    return dataclasses.replace(
        paper, generator=TunedGenerator(), generate=generate.Nothing(), eval=Eval(likelihood="on")
    )


def sweep() -> Iterator[Overrides]:
    yield {"system": "hdbscan"}
    yield {"system": "k-means", "neighbours.clustering": "k_means", "neighbours.num_clusters": 10}
