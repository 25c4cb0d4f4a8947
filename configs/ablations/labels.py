"""What documents are worth where the answer is the most probable label, with and without calibration.

pbr-jax sweep configs/ablations/labels.py --benchmark.name lamp_3 --benchmark.root FOLDER --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.sweep import grid, product, zipped

SYSTEMS = ("zero_shot", "random", "recency", "bm25", "dense")
OTHERS = {
    "system": "others_random",
    "collaboration": "text",
    "neighbours.method": "random",
    "neighbours.own": False,
    "neighbours.m": 8,
    "retrieve.method": "random",
    "retrieve.k": 1,
    "select.k": 4,
}
# A calibrated run scores the plain prompts too, together with its own: those after it find them.
CALIBRATIONS = ("content_free", "content_free_no_documents", "none")


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=4), generate=generate.Label())


def sweep() -> Iterator[Overrides]:
    systems = zipped({"system": SYSTEMS, "retrieve.method": ("none", *SYSTEMS[1:])})
    return product([*systems, OTHERS], grid({"generate.calibration": CALIBRATIONS}))
