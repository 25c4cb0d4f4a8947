"""The learning curve of a tuned generator: training questions needed, and the gain from documents.

Each generator is evaluated twice, without documents and with the three nearest own ones. The difference is
the gain that is left for personalization. The horizontal axis of the curve is `trained.generator.tokens` in
results.json, the number of training tokens. Nothing is decoded, so rows are compared by `target_nll`. A run
with another `--seed` draws other questions; `pbr-jax report DIRS` then averages over seeds.

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
