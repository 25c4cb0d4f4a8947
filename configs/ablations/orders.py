"""What the order of the same documents in the prompt is worth (PURPLE, Figure 4): the own one or five by lot.

The report says in how many questions a method's own order is the best of the six; chance is one sixth.

pbr-jax sweep configs/ablations/orders.py --benchmark.name lamp_7 --benchmark.root FOLDER --limit 60 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import retrieve
from pbr_jax.options import Eval, Prompt

K, N, ORDERS = 5, 20, 5


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=N), prompt=Prompt(max_tokens=2048), eval=Eval(likelihood="on"))


def sweep() -> Iterator[Overrides]:
    for system, method in (("dense", "top_k"), ("rankgpt", "rankgpt"), ("icr", "icr")):
        row: Overrides = {"system": system, "select.method": method, "select.k": K}
        yield row
        for seed in range(ORDERS):
            yield {**row, "prompt.order": "random", "prompt.order_seed": seed}
