"""CFRAG as its released code computes it, where that differs from the paper's equations (configs/cfrag.py).

- User encoder: the loss contrasts both views with both (NT-Xent), document embeddings are trained too, one
  epoch, no held-out users; m = 6 users, the asking user among them.
- Retriever and reranker: KL(feedback || scores) instead of KL(scores || feedback), temperatures 1 and 0.1,
  the map of user embeddings is a single layer, AdamW at 6e-5 with linear decay, 4 questions a step, one
  epoch.
- Answers have 64 tokens at most.

Left as here: metrics are those of the papers' benchmarks (the released F1 is accuracy divided by the number
of labels), prompts are our own, an answer that is not in the asked format is not scored as empty, histories
with fewer candidates than m * k do not end in NaN, and pairs are cut at 512 tokens instead of each text at
256.
"""

import dataclasses

from pbr_jax.config import Config, Lesson, Optimizer, Training, UserEncoder
from pbr_jax.methods import generate, neighbours, retrieve, select


def get_config() -> Config:
    training = Training(
        epochs=1,
        batch_size=4,
        optimizer=Optimizer(name="adamw", learning_rate=6e-5, schedule="linear", weight_decay=1e-5),
    )
    users = dataclasses.replace(UserEncoder().training, epochs=1, selection=0.0)
    return Config(
        system="cfrag_as_released",
        seed=2024,
        collaboration="text",
        neighbours=neighbours.Contrastive(m=6),
        user_encoder=UserEncoder(loss="nt_xent", temperature=0.1, train_embeddings=True, training=users),
        retrieve=retrieve.Tuned(
            k=5, alpha=0.1, user_layers=1, lesson=Lesson(loss="forward_kl"), training=training
        ),
        select=select.Tuned(
            k=5,
            max_length=512,
            user_layers=1,
            lesson=Lesson(loss="forward_kl", student_temperature=0.1, teacher_temperature=0.1),
            training=training,
        ),
        generate=generate.Auto(max_new_tokens=64),
    )
