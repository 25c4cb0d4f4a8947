"""The learning curve of a tuned reader: how many training questions it needs, and what documents still add.

Everything is measured twice, without documents and with three dense own ones: the difference is what is left
for personalization. `results.json` has the target tokens learned from (`trained.reader.tokens`), the axis of
the curve. Nothing is decoded: rows are compared by `target_nll`. A run with another `--seed` draws other
questions; `pbr-jax report DIRS` then averages over seeds.

pbr-jax sweep ablations/reader_questions --benchmark.name lamp_7 --benchmark.root FOLDER --seed 0 --out D
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides, Reader
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Eval

QUESTIONS = (40, 80, 160, 300, 640, None)


def get_config() -> Config:
    return Config(
        collaboration="signals",
        retrieve=retrieve.Dense(k=3),
        generate=generate.Nothing(),
        reader=Reader(method="lora"),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    for limit in QUESTIONS:
        told = f"{limit or 'all'} questions"
        for name in ("none", "dense"):
            yield {
                "system": f"{'zero_shot' if name == 'none' else name}, {told}",
                "retrieve.method": name,
                "reader.limit": limit,
            }
