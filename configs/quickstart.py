"""The demo: the value of a user's own history, on synthetic users, with real small models on two CPU cores.

Answers are decoded only for the first three questions. Systems are compared by `target_nll`, the negative
log-likelihood of what the user wrote.

pbr-jax sweep configs/quickstart.py --out runs/quickstart
"""

from collections.abc import Iterator

from pbr_jax.config import Benchmark, Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Eval

K = 3
OTHERS = {
    "system": "others_random",
    "collaboration": "text",
    "neighbours.method": "random",
    "neighbours.own": False,
    "neighbours.m": 2 * K,  # some have written nothing
    "retrieve.method": "random",
    "retrieve.k": 1,
    "select.k": K,
}


def get_config() -> Config:
    return Config(
        system="dense",
        limit=20,
        benchmark=Benchmark(name="synthetic"),
        retrieve=retrieve.Dense(k=K),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    yield {"system": "zero_shot", "retrieve.method": "none", "eval.examples": 3}
    yield OTHERS
    yield {"system": "recency", "retrieve.method": "recency"}
    yield {"system": "dense", "retrieve.method": "dense", "eval.examples": 3}
