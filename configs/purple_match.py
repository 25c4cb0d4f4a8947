"""PURPLE for a CPU core, with the fit of records to the query and the retrievers' scores as inputs.

These inputs are ours (docs/papers/purple.md). `fusion match` adds the fit of query and record to the record's
vector, and `features scores` adds the retrievers' scores. Held-out users choose the step by the rank
correlation of their candidates. The reward of each record alone is computed once.

pbr-jax run configs/purple_match.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Optimizer, Training
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    training = Training(
        epochs=6,
        batch_size=16,
        selection=0.2,
        select_by="rank_correlation",
        patience=None,
        optimizer=Optimizer(name="adam", learning_rate=3e-4),
    )
    chosen = select.Purple(
        k=3,
        fusion="match",
        features="scores",
        num_layers=1,
        query_tokens=128,
        record_tokens=128,
        learns_from="singles",
        reward="per_token",
        advantage="leave_one_out",
        training=training,
    )
    return Config(
        system="purple_match",
        collaboration="signals",
        limit_training=240,
        retrieve=retrieve.Dense(k=10),
        select=chosen,
    )
