"""CFRAG as its released code computes it, where that differs from the paper's equations (configs/cfrag.py).

- User encoder: the loss contrasts both views with both (NT-Xent), document embeddings are trained too, one
  epoch, no held-out users; m = 6 users, the asking user among them. Documents are means of token states.
- Retriever and reranker: KL(feedback || scores) instead of KL(scores || feedback), temperatures 1 and 0.1,
  the map of user embeddings is a single layer, AdamW at 6e-5 with linear decay for heads and towers alike, 4
  questions a step, one epoch, no held-out questions: the last step is taken. An error of a rating is worth
  - error.
- Half precision: bfloat16 where the code has fp16, which needs a scaled loss.
- Texts of queries and documents have their fields quoted by name, LaMP-2's with their tags.
- Prompts of 3000 tokens; answers have 64 tokens at most.

Left as here: metrics are those of the papers' benchmarks (the released F1 is accuracy divided by the number
of labels), prompts are our own, an answer that is not in the asked format is not scored as empty, histories
with fewer candidates than m * k do not end in NaN, pairs are cut at 512 tokens instead of each text at
256, the user encoder's best step is the last (the code: of the lowest training loss), and models are the
defaults (the code: bge-base-en-v1.5, bge-reranker-base, Llama-3-8B or Qwen2-7B-Instruct).
"""

import dataclasses

from pbr_jax.config import (
    Benchmark,
    Config,
    Distillation,
    Encoder,
    Feedback,
    Optimizer,
    Prompt,
    Training,
    UserEncoder,
)
from pbr_jax.methods import generate, neighbours, retrieve, select


def get_config() -> Config:
    training = Training(
        epochs=1,
        batch_size=4,
        dtype="bfloat16",
        selection=0.0,
        optimizer=Optimizer(name="adamw", learning_rate=6e-5, schedule="linear", weight_decay=1e-5),
    )
    users = dataclasses.replace(UserEncoder().training, epochs=1, selection=0.0)
    return Config(
        system="cfrag_as_released",
        seed=2024,
        benchmark=Benchmark(form="cfrag"),
        encoder=Encoder(pooling="mean"),
        prompt=Prompt(max_tokens=3000),
        feedback=Feedback(errors="negated"),
        collaboration="text",
        neighbours=neighbours.Contrastive(m=6),
        user_encoder=UserEncoder(loss="nt_xent", temperature=0.1, train_embeddings=True, training=users),
        retrieve=retrieve.Tuned(
            k=5, alpha=0.1, user_layers=1, distillation=Distillation(loss="forward_kl"), training=training
        ),
        select=select.Tuned(
            k=5,
            max_length=512,
            user_layers=1,
            distillation=Distillation(loss="forward_kl", student_temperature=0.1, teacher_temperature=0.1),
            training=training,
        ),
        generate=generate.Auto(max_new_tokens=64),
    )
