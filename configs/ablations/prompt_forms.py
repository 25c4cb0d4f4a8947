"""Which wording of the prompt gives the best results, measured on training questions.

The results in docs/results/personal.md use the form that this sweep prefers on the training split.

pbr-jax sweep configs/ablations/prompt_forms.py --benchmark.name lamp_7 --benchmark.root FOLDER \\
    --benchmark.split train --limit 100 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Eval
from pbr_jax.sweeps import grid, product, zipped

SYSTEMS = ("zero_shot", "random", "dense")


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=4), generate=generate.Nothing(), eval=Eval(likelihood="on"))


def sweep() -> Iterator[Overrides]:
    systems = zipped({"system": SYSTEMS, "retrieve.method": ("none", *SYSTEMS[1:])})
    return product(systems, grid({"prompt.form": ("own", "lamp")}))
