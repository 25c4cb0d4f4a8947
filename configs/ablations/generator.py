"""Hyperparameters of a tuned generator: rank, learning rate, and the share of prompts without documents.

For the number of training questions, use generator_questions.py.

Each generator is evaluated twice, without documents and with the three nearest own ones. The difference is
the gain that is left for personalization. Nothing is decoded, so rows are compared by `target_nll`.

pbr-jax sweep configs/ablations/generator.py --benchmark.name lamp_7 --benchmark.root FOLDER --limit 150 \\
  --out DIR
"""

from collections.abc import Iterator, Mapping

from pbr_jax.config import Config, Overrides, TunedGenerator
from pbr_jax.methods import generate, retrieve
from pbr_jax.options import Eval

NONE, OWN = "none", "own"
ROWS: dict[str, Overrides] = {
    "default": {},
    **{f"rank {rank}": {"generator.rank": rank, "generator.alpha": 4.0 * rank} for rank in (2, 32)},
    **{f"rate {rate}": {"generator.training.optimizer.learning_rate": rate} for rate in (1e-4, 2e-3)},
    "only without documents": {"generator.documents": (NONE,)},
    "a third without documents": {"generator.documents": (NONE, OWN, OWN)},
    "only with documents": {"generator.documents": (OWN,)},
}


def get_config() -> Config:
    return Config(
        collaboration="signals",
        retrieve=retrieve.Dense(k=3),
        generate=generate.Nothing(),
        generator=TunedGenerator(method="lora"),
        eval=Eval(likelihood="on"),
    )


def twice(rows: Mapping[str, Overrides]) -> Iterator[Overrides]:
    """Every row without documents and with own ones."""
    for told, row in rows.items():
        for name in ("none", "dense"):
            yield {
                "system": f"{'zero_shot' if name == 'none' else name}, {told}",
                "retrieve.method": name,
                **row,
            }


def sweep() -> Iterator[Overrides]:
    return twice(ROWS)
