"""Dense retrieval with a generator tuned on the training split: the gain from documents that remains.

LoRA on 300 training questions, each once without documents and once with three own ones. For rows to compare
it with: configs/ablations/tuned.py.

pbr-jax run tuned --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, TunedGenerator
from pbr_jax.methods import retrieve


def get_config() -> Config:
    return Config(
        system="tuned",
        collaboration="signals",
        retrieve=retrieve.Dense(k=3),
        generator=TunedGenerator(method="lora"),
    )
