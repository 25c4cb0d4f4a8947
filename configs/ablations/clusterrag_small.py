"""configs/clusterrag_small.py in its three modes, with the rows to compare them with.

Every prompt has two documents, except zero-shot's. Zero-shot is run with the frozen and the tuned generator,
and one tuned generator serves all rows. In the rows "random user", the documents of a random user replace
those of the cohort neighbour, alone and with own ones. Answers take longest; to run without them, use
`--generate.method none --eval.likelihood on`.

pbr-jax sweep ablations/clusterrag_small --benchmark.name lamp_7 --benchmark.root FOLDER --limit 150 --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

OWN: Overrides = {"neighbours.method": "self", "neighbours.m": 1}
ANYBODY: Overrides = {"neighbours.method": "random"}
ALONE: Overrides = {"neighbours.own": False, "neighbours.m": 1}
ROWS: dict[str, Overrides] = {
    "zero_shot": {**OWN, "retrieve.method": "none"},
    "random": {**OWN, "retrieve.method": "random"},
    "dense": {**OWN, "retrieve.method": "dense"},
    "clusterrag, user-only": OWN,
    "clusterrag, collaborative": ALONE,
    "clusterrag, hybrid": {},
    "random user": {**ANYBODY, **ALONE},
    "hybrid with a random user": ANYBODY,
}


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "clusterrag_small.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    for method, told in (("frozen", ""), ("lora", ", tuned")):
        for name, row in ROWS.items():
            yield {"system": name + told, "generator.method": method, **row}
