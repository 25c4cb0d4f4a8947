"""PURPLE and ICR with 5, 10 and 15 of twenty records in the prompt (PURPLE, Figure 5), and with 1 and 3.

Prompts have up to 2,048 tokens, so that fifteen records fit. A policy is trained for each number. The HTML
report plots the metric over `select.k`, with a line for each system. The paper's ICR uses another model than
the one that answers; set `select.llm` for this, see docs/papers/llm_baselines.md.

pbr-jax sweep ablations/purple_k --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides, Prompt
from pbr_jax.sweeps import grid, product, zipped

K = (1, 3, 5, 10, 15)
SYSTEMS = {"system": ("purple", "icr"), "select.method": ("purple", "icr")}


def get_config() -> Config:
    purple: Config = runpy.run_path(str(Path(__file__).parents[1] / "purple.py"))["get_config"]()
    return dataclasses.replace(purple, prompt=Prompt(max_tokens=2048))


def sweep() -> Iterator[Overrides]:
    return product(zipped(SYSTEMS), grid({"select.k": K}))
