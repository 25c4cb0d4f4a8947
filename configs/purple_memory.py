"""PURPLE over a conversation's history, trained in folds of conversations (configs/ropg_memory.py).

The policy starts as the fused retriever (`select.prior`). Its inputs include the fit of query and record
(`fusion match`) and both retrievers' scores (`features scores`). The reward of each candidate alone is
computed once, so training and evaluation use the same prompts. It has 1 layer and records of 64 tokens.

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
