"""The learning curve of a tuned generator: training questions needed, and what documents still add.

Everything is measured twice, without documents and with three dense own ones: the difference is what is left
for personalization. `trained.generator.tokens` of results.json, the tokens learned from, is the axis of
the curve. Nothing is decoded: rows are compared by `target_nll`. A run with another `--seed` draws other
questions; `pbr-jax report DIRS` then averages over seeds.

pbr-jax sweep ablations/generator_questions --benchmark.name lamp_7 --benchmark.root FOLDER --seed 0 --out D
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

READER = runpy.run_path(str(Path(__file__).with_name("generator.py")))
QUESTIONS = (40, 80, 160, 300, 640, None)


def get_config() -> Config:
    return READER["get_config"]()


def sweep() -> Iterator[Overrides]:
    return READER["twice"]({f"{limit or 'all'} questions": {"generator.limit": limit} for limit in QUESTIONS})
