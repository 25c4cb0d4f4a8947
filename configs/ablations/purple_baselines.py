"""PURPLE and its baselines with three decoding seeds: the paper's Table 1 (LaMP) and Table 3 (LongLaMP).

Answers are sampled as in the paper, and the three seeds of a system are one row of the report. The policy is
trained once. On LongLaMP (`--benchmark.name longlamp_abstract`, or another of the three), all three tasks are
run, from one root with the three folders. The paper's retriever is Contriever: set `--encoder.model FOLDER`.
`--select.llm.model FOLDER` reranks for RankGPT and ICR; without it, the model that answers does.

pbr-jax sweep ablations/purple_baselines --benchmark.name longlamp_topic --benchmark.root FOLDER --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides, Prompt
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.sweeps import grid, product

LONG = ("longlamp_abstract", "longlamp_review", "longlamp_topic")
SHOWN: Overrides = {"retrieve.k": 5, "select.method": "top_k"}
ROWS: tuple[Overrides, ...] = (
    {"system": "bm25", "retrieve.method": "bm25_lamp", **SHOWN},
    {"system": "dense", **SHOWN},
    {"system": "ic_ralm", "generate.method": "ic_ralm", "select.method": "top_k", "select.k": None},
    {"system": "replug", "generate.method": "replug", **SHOWN},
    {"system": "rankgpt"},
    {"system": "icr", "select.method": "icr"},
    {"system": "purple", "select.method": "purple", "collaboration": "signals"},
)


def get_config() -> Config:
    return Config(
        retrieve=retrieve.Dense(k=20),
        select=select.RankGPT(k=5),
        prompt=Prompt(max_tokens=2048),
        generate=generate.Auto(temperature=0.7, top_p=0.8),
    )


def sweep(config: Config | None = None) -> Iterator[Overrides]:
    name = (config or get_config()).benchmark.name
    tasks = LONG if name in LONG else (name,)
    return product(grid({"benchmark.name": tasks}), ROWS, grid({"generate.seed": range(3)}))
