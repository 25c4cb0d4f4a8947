"""ROPG-KD at the size of configs/cfrag_small.py: likelihood feedback on 60 questions, 12 own documents each.

pbr-jax run configs/ropg_small.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Distillation, Feedback, Optimizer, tuning
from pbr_jax.methods import retrieve


def get_config() -> Config:
    distillation = Distillation(
        loss="forward_kl", teacher="bounded_z_scores", teacher_temperature=0.1, student_temperature=0.1
    )
    adam = Optimizer(name="adam", learning_rate=1e-5)
    return Config(
        system="ropg, likelihood feedback",
        collaboration="signals",  # it learns from the training users' histories
        limit_training=240,
        feedback=Feedback(metric="likelihood", limit=60, candidates=12),
        retrieve=retrieve.Tuned(
            k=3, alpha=0.0, distillation=distillation, training=tuning(epochs=3, optimizer=adam)
        ),
    )
