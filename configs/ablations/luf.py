"""LUF with its baselines (Tables 1, 2), its parts (Table 5) and the accuracy of its labels (Figure 3).

The config's language model labels, reranks and answers. `centred`, `self` and `random 10` are our controls.
Report with `--over second_half`, because no row has learned before the first update. The report shows seconds
(Table 6) and tokens. Tables 7 and 8 are ablations/luf_steps, Table 4 is ablations/luf_dialogues, and Table 3
is benchmarks/judgement.py.

pbr-jax sweep ablations/luf --benchmark.name xquad --benchmark.root FOLDER --benchmark.split de \
    --benchmark.passages en --llm.model MODEL --out DIR
"""

import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

FROZEN: Overrides = {"retrieve.method": "dense", "collaboration": "none"}
PART = "retrieve.loss."
ROWS: dict[str, Overrides] = {
    "no retrieval": {"retrieve.method": "none", "select.method": "top_k", "collaboration": "none"},
    "r&r": FROZEN,
    "query2doc": {**FROZEN, "expand.method": "query2doc"},
    "rewrite": {**FROZEN, "expand.method": "rewrite"},
    "rafe": {**FROZEN, "expand.method": "rafe"},
    "centred": {"retrieve.method": "centred"},
    "strict": {f"{PART}flaccid": 0.0, f"{PART}hard": 0.0},
    "strict + flaccid": {f"{PART}hard": 0.0},
    "luf": {},
    **{
        f"luf, {judge} remarks": {"retrieve.remarks": judge, "collaboration": "text"}
        for judge in ("oracle", "judged", "all")
    },
    "without strict": {f"{PART}strict": 0.0},
    "without flaccid": {f"{PART}flaccid": 0.0},
    "random batches": {"retrieve.batches": "random"},
    "own negatives": {f"{PART}negatives": "labelled"},
    "query likelihood": {"retrieve.labels.kind": "query_likelihood"},
    "self": {"retrieve.labels.kind": "self"},
    "random 10": {"retrieve.labels.kind": "random_k"},
    **{
        f"gold, accuracy {keep}": {"retrieve.labels.kind": "gold", "retrieve.labels.keep": keep}
        for keep in (1.0, 0.9, 0.8, 0.7, 0.6)
    },
}


def get_config() -> Config:
    return runpy.run_path(str(Path(__file__).parents[1] / "luf.py"))["get_config"]()


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        yield {"system": name, **row}
