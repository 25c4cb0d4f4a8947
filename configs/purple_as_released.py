"""PURPLE as its released code computes it, where that differs from the paper (configs/purple.py).

- The policy's step is chosen every 1024 questions.
- Answers are sampled: temperature .7, nucleus .8, at most 256 tokens; prompts have LaMP's structure and 2048
  tokens.
- Records and queries are cut at 512 tokens, or at what the encoder reads.

Left as here, with why, in docs/papers/purple.md: the step is chosen by held-out training users, never on the
reported split; a short history shortens its own profile alone, not those of its whole batch; the frozen
encoder drops nothing out; a run that goes on after a kill ends with the same numbers.

pbr-jax run configs/purple_as_released.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses

from pbr_jax.config import Config, Prompt
from pbr_jax.methods import generate, retrieve, select


def get_config() -> Config:
    training = dataclasses.replace(select.Purple().training, evaluate_every=64)
    return Config(
        system="purple_as_released",
        seed=42,
        collaboration="signals",
        prompt=Prompt(form="lamp", max_tokens=2048),
        retrieve=retrieve.Dense(k=20),
        select=select.Purple(k=5, query_tokens=512, record_tokens=512, training=training),
        generate=generate.Auto(temperature=0.7, top_p=0.8, max_new_tokens=256),
    )
