"""CFRAG, its ablations and the baselines on a subset for two CPU cores.

240 training users, feedback on 12 of their questions with 3 documents from each of 3 users, 60 evaluated
questions, 3 documents in every prompt. For all of the data: configs/ablations/cfrag_modules.py and
baselines.py.

pbr-jax sweep configs/ablations/cfrag_small.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Feedback, Overrides, UserEncoder
from pbr_jax.methods import neighbours, retrieve, select

HERE = Path(__file__).parent
OWN = {"neighbours.method": "self", "neighbours.m": 1, "collaboration": "none", "select.method": "top_k"}


def get_config() -> Config:
    training = dataclasses.replace(UserEncoder().training, epochs=3)
    return Config(
        system="cfrag",
        limit=60,
        limit_training=240,
        collaboration="text",
        neighbours=neighbours.Contrastive(m=3),
        user_encoder=UserEncoder(max_documents=32, training=training),
        feedback=Feedback(limit=12, max_new_tokens=32),
        retrieve=retrieve.Tuned(k=3),
        select=select.Tuned(k=3, max_length=128),
    )


def sweep() -> Iterator[Overrides]:
    yield from runpy.run_path(str(HERE / "cfrag_modules.py"))["sweep"]()
    for method in ("none", "random", "recency", "bm25", "dense"):
        yield {"system": "zero_shot" if method == "none" else method, "retrieve.method": method, **OWN}
    yield {"system": "ropg", "retrieve.alpha": 0.0, "retrieve.lesson.loss": "forward_kl", **OWN,
           "collaboration": "signals"}  # fmt: skip
