"""The gain from personalization: no documents, other users', own ones by each baseline, and a ceiling.

Nothing is decoded. Rows are compared by `target_nll`, the negative log-likelihood of what the user wrote.
`own_shuffled` has the documents of `dense` in another order. `oracle` shows the four of twenty documents with
the highest likelihood of the target. It is not a system, but an upper bound on the gain from selection.

pbr-jax sweep configs/ablations/ruler.py --benchmark.name lamp_7 --benchmark.root FOLDER --limit 150 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Eval

RETRIEVERS = ("random", "recency", "bm25_lamp", "bm25", "dense", "fused")
OWN = {name: {"system": name, "retrieve.method": name} for name in RETRIEVERS}
ROWS: tuple[Overrides, ...] = (
    {"system": "zero_shot", "retrieve.method": "none"},
    {
        "system": "others_random",
        "collaboration": "text",
        "neighbours.method": "random",
        "neighbours.own": False,
        "neighbours.m": 8,
        "retrieve.method": "random",
        "retrieve.k": 1,
        "select.k": 4,
    },
    *OWN.values(),
    {**OWN["dense"], "system": "own_shuffled", "prompt.order": "random"},
    {**OWN["dense"], "system": "oracle", "retrieve.k": 20, "select.method": "oracle", "select.k": 4},
)


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=4), generate=generate.Nothing(), eval=Eval(likelihood="on"))


def sweep() -> Iterator[Overrides]:
    return iter(ROWS)
