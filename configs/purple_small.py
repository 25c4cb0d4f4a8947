"""PURPLE at a size for a CPU core: 240 training questions, 2 layers, 8 profiles of each, 2 epochs.

Records are cut to 64 tokens, queries to 128. 15 % of the training users choose the step.

pbr-jax run configs/purple_small.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Optimizer, Training
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    training = Training(
        epochs=2,
        batch_size=16,
        selection=0.15,
        patience=None,
        optimizer=Optimizer(name="adam", learning_rate=1e-4),
    )
    chosen = select.Purple(
        k=3, num_layers=2, rollouts=8, query_tokens=128, record_tokens=64, training=training
    )
    return Config(
        system="purple",
        collaboration="signals",
        limit_training=240,
        retrieve=retrieve.Dense(k=20),
        select=chosen,
    )
