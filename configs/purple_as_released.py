"""PURPLE as in its released code, where that differs from the paper (configs/purple.py).

- The policy's step is chosen after every 1024 questions.
- Answers are sampled with temperature .7 and nucleus .8, and have at most 256 tokens. Prompts have LaMP's
  structure and up to 2048 tokens.
- Records and queries are cut at 512 tokens, or at the encoder's maximum length.

The following is not as in the code; docs/papers/purple.md gives the reasons. Held-out training users choose
the step, never the reported split. A short history shortens only its own profile, not those of its whole
batch. The frozen encoder has no dropout. A run that is killed and continued ends with the same numbers.

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
