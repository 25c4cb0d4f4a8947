"""A search over PBR's anchor and its weight: every kind of anchor with three weights.

To choose on one community of PersonaBench and test on the other, give a folder with only one of them.

pbr-jax sweep configs/ablations/pbr_anchor_search.py --benchmark.name personabench --benchmark.root FOLDER
--benchmark.split noise_0.0 --expand.released FILE --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import expand, retrieve
from pbr_jax.sweeps import grid, product

ANCHORS = (
    {"system": "pagerank"},
    {"system": "mean", "expand.anchor": "mean"},
    {"system": "restarts near the query", "expand.anchor": "query", "expand.damping": 0.5},
    {
        "system": "restarts very near",
        "expand.anchor": "query",
        "expand.damping": 0.5,
        "expand.temperature": 0.02,
    },
    {"system": "4 clusters", "expand.anchor": "cluster", "expand.clusters": 4},
    {"system": "16 clusters", "expand.anchor": "cluster", "expand.clusters": 16},
)


def get_config() -> Config:
    return Config(system="pbr", expand=expand.PBR(), retrieve=retrieve.Dense(k=5))


def sweep() -> Iterator[Overrides]:
    yield {"system": "no anchor", "expand.anchor": "none"}
    yield from product(ANCHORS, grid({"expand.anchor_weight": (0.25, 0.5, 1.0)}))
