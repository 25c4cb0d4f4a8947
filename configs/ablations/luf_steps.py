"""Steps of reranking and their tokens (LUF, Tables 7 and 8): one by one, every 5, every 20, multi-level.

pbr-jax sweep configs/ablations/luf_steps.py --benchmark.name xquad --benchmark.root FOLDER \
    --benchmark.split de --benchmark.passages en --benchmark.distractors FILE --out DIR

The relevant documents in the data decide, and prompts are counted in the model's tokens, so no model runs.
`--select.judge llm` asks the config's model. `pbr-jax report DIR` shows calls and tokens per question.
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.options import Eval
from pbr_jax.sweeps import zipped

STEPS = {
    "single": (1,) * 40,
    "every 5": (5,) * 8,
    "every 20": (20, 20),
    "multi-level": (1, 1, 1, 1, 1, 5, 10, 20),
}


def get_config() -> Config:
    return Config(
        retrieve=retrieve.Dense(k=40),
        select=select.MultiLevel(judge="oracle"),
        generate=generate.Nothing(),
        eval=Eval(likelihood="off"),
    )


def sweep() -> Iterator[Overrides]:
    return zipped({"system": tuple(STEPS), "select.steps": tuple(STEPS.values())})
