"""The gain from each part of LUF's retriever, with controls that learn nothing about relevance.

`centred` subtracts the mean of past queries, without labels or training. `self`, `random 10` and `shuffled
labels` train on labels with little or no information. Questions arrive in two orders: shuffled, so that
passages recur, or article by article, so that every article is new. The seed determines the order;
benchmarks/luf.py pairs the rows of each seed.

pbr-jax sweep ablations/luf_small --benchmark.name xquad --benchmark.root FOLDER --benchmark.split de \
    --benchmark.passages en --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

ORDERS = {"mixed": "shuffled", "by article": "by_unit"}
ROWS: dict[str, Overrides] = {
    "frozen": {"retrieve.method": "dense", "collaboration": "none"},
    "centred": {"retrieve.method": "centred"},
    "luf": {},
    "luf, accuracy .6": {"retrieve.labels.keep": 0.6},
    "strict": {"retrieve.loss.flaccid": 0.0, "retrieve.loss.hard": 0.0},
    "strict + flaccid": {"retrieve.loss.hard": 0.0},
    "without strict": {"retrieve.loss.strict": 0.0},
    "without flaccid": {"retrieve.loss.flaccid": 0.0},
    "random batches": {"retrieve.batches": "random"},
    "from the last state": {"retrieve.starts": "last"},
    "own negatives": {"retrieve.loss.negatives": "labelled"},
    "luf, accuracy .8": {"retrieve.labels.keep": 0.8},
    "luf, .4 wrong": {"retrieve.labels.wrong": 0.4},
    "luf, .2 wrong": {"retrieve.labels.wrong": 0.2},
    "self": {"retrieve.labels.kind": "self"},
    "random 10": {"retrieve.labels.kind": "random_k"},
    "shuffled labels": {"retrieve.labels.kind": "shuffled"},
}
REPEATED = {
    "mixed": ("frozen", "centred", "luf", "luf, accuracy .6", "luf, .4 wrong"),
    "by article": ("frozen", "centred", "luf"),
}


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "luf_small.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    for seed in range(4):
        for name, order in ORDERS.items():
            for row in ROWS if seed == 0 else REPEATED[name]:
                yield {"system": f"{row}, {name} {seed}", "seed": seed, "stream.order": order, **ROWS[row]}
