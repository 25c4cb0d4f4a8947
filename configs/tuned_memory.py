"""Dense retrieval with a generator tuned fold by fold over conversations (configs/ropg_memory.py).

LoRA on 150 questions of the other conversations, each without documents and with an own one: what evidence is
still worth once the form of an answer is learned.

pbr-jax run tuned_memory --benchmark.name locomo --benchmark.root FOLDER --benchmark.split locomo10 --out DIR
"""

from pbr_jax.config import Config, Stream, TunedGenerator
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(
        system="tuned",
        collaboration="signals",  # it learns from other conversations' questions
        stream=Stream(protocol="cross_units", folds=2),
        retrieve=retrieve.Dense(k=1),
        generator=TunedGenerator(method="lora", k=1, limit=150),
    )
