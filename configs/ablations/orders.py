"""The effect of the documents' order in the prompt (PURPLE, Figure 4): the method's own, or five random ones.

The report shows for how many questions a method's own order is the best of the six; chance is one sixth.
PURPLE's policy is trained once, on prompts with the best document first, whichever order is evaluated. Its
options are those of the config; for a smaller policy use `--select.num_layers 2 --select.rollouts 8
--limit_training 240`.

pbr-jax sweep configs/ablations/orders.py --benchmark.name lamp_7 --benchmark.root FOLDER --limit 60 --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides
from pbr_jax.options import Eval, Prompt

ORDERS = 5
SYSTEMS = {"dense": "top_k", "rankgpt": "rankgpt", "icr": "icr", "purple": "purple"}


def get_config() -> Config:
    purple: Config = runpy.run_path(str(Path(__file__).parents[1] / "purple.py"))["get_config"]()
    return dataclasses.replace(purple, prompt=Prompt(max_tokens=2048), eval=Eval(likelihood="on"))


def sweep() -> Iterator[Overrides]:
    for system, method in SYSTEMS.items():
        row: Overrides = {"system": system, "select.method": method}
        yield row
        for seed in range(ORDERS):
            yield {**row, "prompt.order": "random", "prompt.order_seed": seed}
