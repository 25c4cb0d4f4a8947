"""Rows of ablations/ruler with a frozen and a tuned generator. What remains after tuning is personalization.

One generator is trained and used for all rows. Nothing is decoded, so rows are compared by `target_nll`.
Every prompt has three documents, except zero-shot's.

pbr-jax sweep configs/ablations/tuned.py --benchmark.name lamp_7 --benchmark.root FOLDER --limit 150 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Eval

OTHERS = {
    "neighbours.method": "random",
    "neighbours.own": False,
    "neighbours.m": 6,
    "retrieve.method": "random",
    "retrieve.k": 1,
    "select.k": 3,
}
ROWS: dict[str, Overrides] = {
    "zero_shot": {"retrieve.method": "none"},
    "others_random": OTHERS,
    **{name: {"retrieve.method": name} for name in ("random", "bm25_lamp", "bm25", "dense")},
}


def get_config() -> Config:
    return Config(
        collaboration="text",
        retrieve=retrieve.Dense(k=3),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    for method, told in (("frozen", ""), ("lora", ", tuned")):
        for name, row in ROWS.items():
            yield {"system": name + told, "generator.method": method, **row}
