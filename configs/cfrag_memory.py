"""CFRAG over a conversation's own history, trained in folds of conversations (configs/ropg_memory.py).

`--collaboration text --neighbours.method contrastive --neighbours.m 2` adds the histories of similar users.
Another conversation rarely answers a question about this one.

pbr-jax run cfrag_memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 --out DIR
"""

from pbr_jax.config import Config, Distillation, Feedback, Optimizer, Stream, UserEncoder, tuning
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    distillation = Distillation(teacher="bounded_z_scores", teacher_temperature=0.1)
    cosines = Distillation(teacher="bounded_z_scores", teacher_temperature=0.1, student_temperature=0.1)
    adam = Optimizer(name="adam", learning_rate=3e-5, head_learning_rate=1e-3)
    training = tuning(epochs=3, optimizer=adam)
    return Config(
        system="cfrag, likelihood feedback",
        collaboration="signals",  # it learns from other conversations' questions and histories
        stream=Stream(protocol="cross_units", folds=2),
        user_encoder=UserEncoder(max_documents=32),
        feedback=Feedback(metric="likelihood", limit=150, candidates=8),
        retrieve=retrieve.Tuned(k=8, distillation=cosines, training=training),
        select=select.Tuned(k=1, max_length=128, distillation=distillation, training=training),
    )
