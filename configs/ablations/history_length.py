"""How long must the own history be before other users' documents stop helping?

Histories are cut to 0, 1, 2, 4 or 8 documents, or kept whole. `own` shows own documents alone. `filled_*`
shows the same, and fills the remaining positions of the prompt from other users: the nearest by the trained
encoder, the nearest by means, or random ones. `others` shows only documents of the nearest users. `auto`
fills positions if that helped training users. Nothing is decoded, so rows are compared by `target_nll`.

pbr-jax sweep configs/ablations/history_length.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.options import Eval

LENGTHS = (0, 1, 2, 4, 8, None)
ROWS: dict[str, Overrides] = {
    "own": {"neighbours.method": "self"},
    "filled_contrastive": {"neighbours.method": "contrastive", "neighbours.m": 4, "select.own": 4},
    "filled_mean": {"neighbours.method": "mean", "neighbours.m": 4, "select.own": 4},
    "filled_random": {"neighbours.method": "random", "neighbours.m": 4, "select.own": 4},
    "others": {"neighbours.method": "mean", "neighbours.m": 4, "select.own": 0},
    "auto": {"neighbours.method": "mean", "neighbours.m": 4, "select.own": "auto"},
}


def get_config() -> Config:
    return Config(
        collaboration="text",
        retrieve=retrieve.Dense(k=4),
        select=select.TopK(k=4),
        generate=generate.Nothing(),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    return ({"system": name, **row, "limit_history": n} for name, row in ROWS.items() for n in LENGTHS)
