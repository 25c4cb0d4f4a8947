"""PURPLE without each of its parts (Table 2), and the pointwise learner.

For the number of records, use purple_k.py.

- w/o CA: the query is an additional member of the set. w/o RDM: there are no layers, so each record is scored
  alone. w/ MR: the reward is the metric of an answer, not the likelihood of the target.
- pointwise learner: no layers, and the reward of single records. This row is ours.

pbr-jax sweep configs/ablations/purple.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

PARTS: dict[str, Overrides] = {
    "w/o CA": {"select.fusion": "concat_token"},
    "w/o RDM": {"select.num_layers": 0},
    "w/ MR": {"select.reward": "metric"},
    "pointwise learner": {"select.num_layers": 0, "select.learns_from": "singles"},
}


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "purple.py"))["get_config"]()


def sweep(config: Config | None = None) -> Iterator[Overrides]:
    system = (config or get_config()).system
    yield {"system": system}
    for name, part in PARTS.items():
        yield {"system": f"{system}, {name}", **part}
