"""Dense retrieval with a generator tuned in folds of conversations (configs/ropg_memory.py).

LoRA on 150 questions of the other conversations, each once without documents and once with an own one. It
measures the gain from evidence that remains after the model has learned the form of an answer.

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
