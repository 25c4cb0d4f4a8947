"""PrefEval: which memory makes a model follow a preference that was stated eleven turns ago?

Answers are chosen among four by likelihood, so chance is 25 %. Rows as in the paper, Zhao et al., 2025: the
whole conversation (its zero-shot), with a reminder, retrieval of turns. Further rows: nothing, the newest
turns, and the preference itself. Whole conversations have a budget of 2,048 tokens, all other rows 512.

pbr-jax sweep configs/ablations/prefeval.py --benchmark.name prefeval --benchmark.root FOLDER \
    --benchmark.split explicit --limit 200 --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.options import Prompt

REMINDER = "Keep in mind what this user has told you about their preferences."
_WHOLE: Overrides = {
    "retrieve.method": "recency", "retrieve.k": 320, "select.k": None,
    "prompt.max_tokens": 2048, "prompt.order": "best_last",
}  # fmt: skip
ROWS: dict[str, Overrides] = {
    "no memory": {"retrieve.method": "none"},
    "whole history": _WHOLE,
    "whole history, reminder": {**_WHOLE, "prompt.reminder": REMINDER},
    "newest": {"retrieve.method": "recency"},
    "bm25": {},
    "dense": {"retrieve.method": "dense"},
    "fused": {"retrieve.method": "fused"},
    "dense, reminder": {"retrieve.method": "dense", "prompt.reminder": REMINDER},
    "preference": {"select.method": "evidence"},
    "preference, reminder": {"select.method": "evidence", "prompt.reminder": REMINDER},
    "preference, cloze": {"select.method": "evidence", "generate.options": "cloze"},
    "preference, letters": {"select.method": "evidence", "generate.options": "letter"},
    "preference, one order": {"select.method": "evidence", "generate.permutations": 1},
    "preference, total": {"select.method": "evidence", "generate.length": "total"},
    "preference, per byte": {"select.method": "evidence", "generate.length": "per_byte"},
}


def get_config() -> Config:
    return Config(
        system="bm25",
        retrieve=retrieve.BM25(k=10),
        select=select.TopK(k=3),
        prompt=Prompt(max_tokens=512),
        generate=generate.Label(),
    )


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        yield {"system": name, **row}
