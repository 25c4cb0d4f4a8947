"""ROPG-KD: dense retrieval in the user's own history, tuned on the language model's feedback.

Salemi et al., "Optimization Methods for Personalizing Large Language Models through Retrieval Augmentation",
SIGIR 2024, https://arxiv.org/abs/2404.05970. The released code passes probabilities to a loss that expects
logits, and counts padding documents; both are corrected here. For ROPG-RL, set `--retrieve.distillation.loss
reinforce`.

pbr-jax run configs/ropg.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Distillation, Feedback, Optimizer, tuning
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(
        system="ropg",
        collaboration="signals",  # it learns from the training users' histories
        feedback=Feedback(candidates=20),
        retrieve=retrieve.Tuned(
            k=4,
            alpha=0.0,
            distillation=Distillation(loss="forward_kl"),
            training=tuning(optimizer=Optimizer(name="adam", learning_rate=1e-5)),
        ),
    )
