"""PURPLE over a conversation's history, fold by fold over conversations (configs/ropg_memory.py).

The policy begins as the fused retriever (`select.prior`) and is given the fit of query and record and both
retrievers' scores (`fusion match`, `features scores`). Each candidate is asked alone and once, so trainings
and evaluation read the same prompts. 1 layer, records of 64 tokens.

pbr-jax run purple_memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 --out DIR
"""

from pbr_jax.config import Config, Feedback, Optimizer, Stream, Training
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
        k=1,
        fusion="match",
        features="scores",
        prior=1.0,
        num_layers=1,
        query_tokens=64,
        record_tokens=64,
        learns_from="singles",
        reward="per_token",
        advantage="leave_one_out",
        training=training,
    )
    return Config(
        system="purple",
        collaboration="signals",  # it learns from other conversations' questions
        stream=Stream(protocol="cross_units", folds=2),
        feedback=Feedback(limit=150),
        retrieve=retrieve.Fused(k=8),
        select=chosen,
    )
