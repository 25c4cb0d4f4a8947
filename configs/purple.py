"""PURPLE: a contextual bandit learns which of the user's records to put in the prompt.

As in the paper (appendix D): 20 candidates, 5 records, 12 layers, 32 profiles per question, 10 epochs. The
reward is the log-likelihood of what the user wrote. For a CPU, use configs/purple_small.py. See
docs/papers/purple.md.

pbr-jax run configs/purple.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select


def get_config() -> Config:
    return Config(
        system="purple", collaboration="signals", retrieve=retrieve.Dense(k=20), select=select.Purple(k=5)
    )
