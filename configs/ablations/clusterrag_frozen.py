"""ClusterRAG with a language model that is not tuned: the rows of the paper's Table 4 for one model.

`zero_shot` is the paper's nFlan or nQwen2, `clusterrag` its pFlan or pQwen2. Run it once for each
`--llm.model FOLDER`.

pbr-jax sweep ablations/clusterrag_frozen --benchmark.name lamp_5 --benchmark.root FOLDER \\
    --llm.model FOLDER --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides, TunedGenerator


def get_config() -> Config:
    paper: Config = runpy.run_path(str(Path(__file__).parents[1] / "clusterrag.py"))["get_config"]()
    return dataclasses.replace(paper, generator=TunedGenerator())


def sweep() -> Iterator[Overrides]:
    yield {"system": "zero_shot", "neighbours.m": 1, "retrieve.method": "none"}
    yield {"system": "clusterrag"}
