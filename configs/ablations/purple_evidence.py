"""Whether a learned choice of the set (configs/purple_evidence.py) finds more evidence than memory's order.

All rows choose from the same sessions. "shuffled" learns from each question's evidence assigned to other
candidates. Learned rows are trained with three seeds.

pbr-jax sweep ablations/purple_evidence --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --generate.method none --eval.likelihood off --out DIR
"""

from collections.abc import Iterator

from pbr_jax.config import Config, Overrides, found, load

SEEDS = 3
_DRAWN: Overrides = {"select.learns_from": "profiles", "select.rollouts": 16}
ROWS: dict[str, Overrides] = {
    "memory": {"select.method": "top_k"},
    "linear policy": {},
    "linear policy, reinforce": {**_DRAWN, "select.advantage": "leave_one_out"},
    "linear policy, shuffled": {"feedback.shuffle": True},
}


def get_config() -> Config:
    return load(found("purple_evidence")).config


def sweep() -> Iterator[Overrides]:
    for name, row in ROWS.items():
        for seed in range(1 if name == "memory" else SEEDS):
            yield {"system": name, "seed": seed, **row}
