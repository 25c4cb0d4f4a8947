"""Every query expansion with the embedded models, on 40 questions of two benchmarks, on two CPU cores.

Run it in the folder that contains both benchmarks under the names below. Answers, and histories in prompts,
are short so that two CPU cores suffice. For a whole benchmark, use expansions.py.

pbr-jax sweep configs/ablations/expansions_small.py --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Benchmark, Config, Overrides
from pbr_jax.methods import expand, retrieve
from pbr_jax.sweeps import product

EXPANSIONS = Path(__file__).parent / "expansions.py"
PLACES = (
    ("personabench", "personabench/eval_data_v1", "noise_0.0"),
    ("longmemeval", "longmemeval_like_locomo", "locomo_dev"),  # LoCoMo in LongMemEval's format
)


def get_config() -> Config:
    return Config(
        limit=40,
        benchmark=Benchmark(name="personabench"),
        expand=expand.PBR(max_new_tokens=96, history_tokens=256),  # others take over what they have too
        retrieve=retrieve.Dense(k=5),
    )


def sweep() -> Iterator[Overrides]:
    places = [
        {"benchmark.name": name, "benchmark.root": root, "benchmark.split": split}
        for name, root, split in PLACES
    ]
    yield from product(places, runpy.run_path(str(EXPANSIONS))["sweep"]())
