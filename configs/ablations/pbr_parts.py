"""The gain from each part of PBR: the paper's Tables 3, 9 and 10 and its Figures 3 and 6.

pbr-jax sweep configs/ablations/pbr_parts.py --benchmark.name personabench --benchmark.root FOLDER
--benchmark.split noise_0.0 --expand.released FILE --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import expand, retrieve

_FULL = {
    "system": "pbr",
    "expand.anchor": "page_rank",
    "expand.utterances": True,
    "expand.reasoning": True,
    "expand.weights": "cosine",
}


def get_config() -> Config:
    return Config(system="pbr", expand=expand.PBR(), retrieve=retrieve.Dense(k=5))


def sweep() -> Iterator[Overrides]:
    yield _FULL
    yield {**_FULL, "system": "pbr without anchor", "expand.anchor": "none"}
    yield {**_FULL, "system": "pbr without feedback", "expand.utterances": False, "expand.reasoning": False}
    yield {**_FULL, "system": "pbr without utterances", "expand.utterances": False}
    yield {**_FULL, "system": "pbr without reasoning", "expand.reasoning": False}
    yield {**_FULL, "system": "pbr with equal weights", "expand.weights": "equal"}
    yield {"system": "query alone", "expand.method": "none"}
