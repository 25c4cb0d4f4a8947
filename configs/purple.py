"""PURPLE: which of the user's records stand in the prompt is learned by a contextual bandit.

As in the paper (appendix D): 20 candidates, 5 records, 12 layers, 32 profiles a question, 10 epochs; the
reward is the log-likelihood of what the user wrote. For a CPU: configs/purple_small.py. See
docs/papers/purple.md.

pbr-jax run configs/purple.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(
        system="purple", collaboration="signals", retrieve=retrieve.Dense(k=20), select=select.Purple(k=5)
    )
