"""Selection by the language model, with retrievers, a control and a ceiling: three of twenty documents.

Rows are compared by `target_nll` and by the task's metrics of greedy answers. The report shows calls, tokens
and seconds per question for selection and for answers. In rows with `select.llm.model`, another model
selects.

pbr-jax sweep configs/ablations/llm_baselines.py --benchmark.name lamp_7 --benchmark.root FOLDER --limit 60
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import retrieve
from pbr_jax.options import Eval, Prompt

K, N = 3, 20
RERANKED = ("query_likelihood", "pointwise", "rankgpt", "icr", "oracle")
ROWS: tuple[Overrides, ...] = (
    {"system": "zero_shot", "retrieve.method": "none"},
    {
        "system": "others_random",
        "collaboration": "text",
        "neighbours.method": "random",
        "neighbours.own": False,
        "neighbours.m": 2 * K,
        "retrieve.method": "random",
        "retrieve.k": 1,
        "select.k": K,
    },
    *({"system": name, "retrieve.method": name} for name in ("random", "bm25_lamp", "bm25", "dense")),
    *({"system": name, "retrieve.k": N, "select.method": name, "select.k": K} for name in RERANKED),
    {"system": "replug", "generate.method": "replug"},
    {"system": "ic_ralm", "retrieve.k": N, "generate.method": "ic_ralm"},
)


def get_config() -> Config:
    return Config(retrieve=retrieve.Dense(k=K), prompt=Prompt(max_tokens=2048), eval=Eval(likelihood="on"))


def sweep() -> Iterator[Overrides]:
    return iter(ROWS)
