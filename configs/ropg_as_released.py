"""ROPG-KD closer to its released code than configs/ropg.py: dot products, four beams, batches of one.

It was made for Contriever: set `--encoder.model FOLDER`. As in configs/ropg.py, it has two epochs instead of
1000 steps, documents without their dates, and the corrected loss; the code's loss takes probabilities for
logits and counts padding.

pbr-jax run configs/ropg_as_released.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Distillation, Encoder, Feedback, Optimizer, tuning
from pbr_jax.methods import retrieve


def get_config() -> Config:
    adam = Optimizer(name="adam", learning_rate=1e-5)
    return Config(
        system="ropg_as_released",
        collaboration="signals",
        encoder=Encoder(pooling="mean", normalize="no"),
        feedback=Feedback(candidates=20, num_beams=4),
        retrieve=retrieve.Tuned(
            k=4,
            alpha=0.0,
            similarity="dot",
            distillation=Distillation(loss="forward_kl"),
            training=tuning(batch_size=1, optimizer=adam),
        ),
    )
