"""PBR on LongMemEval as in its released code: sessions as JSON, ten documents shown, k2 by history.

It uses the two files that were released first, longmemeval_s.json and longmemeval_m.json. Compare the paper's
R@k with recall_all@k, and its N@k with ndcg_longmemeval@k. The paper's text gives k1 = 5.

pbr-jax sweep configs/ablations/pbr_longmemeval.py --benchmark.root FOLDER --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Benchmark, Config, Overrides
from pbr_jax.methods import expand, retrieve


def get_config() -> Config:
    own = expand.PBR(m=10, k1=10, damping=1.0, iterations=50, on_failure="raw")
    return Config(
        benchmark=Benchmark(name="longmemeval", split="longmemeval_s", form="pbr"),
        expand=own,
        retrieve=retrieve.Dense(k=5),
    )


def sweep() -> Iterator[Overrides]:
    for split, k2 in (("longmemeval_s", 10), ("longmemeval_m", 50)):
        yield {"benchmark.split": split, "system": "none", "expand.method": "none"}
        yield {"benchmark.split": split, "system": "pbr_as_released", "expand.k2": k2}
