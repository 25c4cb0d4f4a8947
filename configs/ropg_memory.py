"""ROPG-KD over a conversation's history, trained in folds of conversations (`stream.protocol cross_units`).

The retriever of each conversation is trained on the other conversations' questions, so no training split is
needed. For 2 CPU cores, it uses 150 questions with 8 candidates each. Feedback is the likelihood of the
target, as in configs/ropg_small.py.

pbr-jax run ropg_memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 --out DIR
"""

from pbr_jax.config import Config, Distillation, Feedback, Optimizer, Stream, tuning
from pbr_jax.methods import retrieve


def get_config() -> Config:
    distillation = Distillation(
        loss="forward_kl", teacher="bounded_z_scores", teacher_temperature=0.1, student_temperature=0.1
    )
    adam = Optimizer(name="adam", learning_rate=3e-5)
    return Config(
        system="ropg, likelihood feedback",
        collaboration="signals",  # it learns from other conversations' questions
        stream=Stream(protocol="cross_units", folds=2),
        feedback=Feedback(metric="likelihood", limit=150, candidates=8),
        retrieve=retrieve.Tuned(
            k=5, alpha=0.0, distillation=distillation, training=tuning(epochs=3, optimizer=adam)
        ),
    )
