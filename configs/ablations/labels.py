"""The gain from documents if the answer is the most probable label, with and without calibration.

pbr-jax sweep configs/ablations/labels.py --benchmark.name lamp_3 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.sweeps import grid, product, zipped

SYSTEMS = ("zero_shot", "random", "recency", "bm25_lamp", "bm25", "dense")
# A calibrated run scores the plain prompts too, together with its own: those after it find them.
CALIBRATIONS = ("content_free", "content_free_no_documents", "none")


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=4), generate=generate.Label())


def sweep() -> Iterator[Overrides]:
    systems = zipped({"system": SYSTEMS, "retrieve.method": ("none", *SYSTEMS[1:])})
    # As in the ruler.
    rows = runpy.run_path(str(Path(__file__).with_name("ruler.py")))["ROWS"]
    others = [row for row in rows if row["system"] == "others_random"]
    return product([*systems, *others], grid({"generate.calibration": CALIBRATIONS}))
