"""PURPLE's choice of a set of evidence, on top of the memory retriever (configs/memory.py).

A linear policy weighs what the retriever's parts say of its first 12 sessions, beginning with the retriever's
order. It learns, in folds of conversations, that each session of a set adds evidence. No language model is
asked. Parts with weight 0 change no ranking: they are features alone.

pbr-jax run purple_evidence --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --out DIR
"""

from dataclasses import replace

from pbr_jax.config import Config, Optimizer, Stream, Training, found, load
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    memory = load(found("memory")).config
    assert isinstance(memory.retrieve, retrieve.Fused)
    sessions = retrieve.BM25(analyser="stem", question_words="out", over="documents", k1=0.0)
    known = (sessions, retrieve.Dense(names="out"), retrieve.Dense(), retrieve.Recency())
    weights = memory.retrieve.weights + (0.0,) * len(known)
    fused = replace(memory.retrieve, k=12, of=memory.retrieve.of + known, weights=weights)
    training = Training(
        epochs=80,
        batch_size=2048,
        selection=0.0,
        patience=None,
        evaluate_every=80,
        optimizer=Optimizer(name="adam", learning_rate=0.03, weight_decay=0.001),
    )
    chosen = select.Purple(
        k=5,
        scorer="linear",
        features="scores",
        prior=1.0,
        reward="evidence",
        learns_from="gains",
        rollouts=2,
        training=training,
    )
    return replace(
        memory,
        system="memory, linear policy",
        collaboration="signals",  # it learns from other conversations' questions
        stream=Stream(protocol="cross_units"),
        retrieve=fused,
        select=chosen,
    )
