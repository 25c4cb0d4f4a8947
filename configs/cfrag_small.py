"""CFRAG at a size for a CPU core: 240 training questions, 60 of them with feedback.

It differs from configs/cfrag.py as follows; all of this is ours. Feedback is the likelihood of the target,
which is graded and needs no decoding, on 60 training questions with 4 x 3 candidates each. Feedback is
z-scored within a question, but differences of less than .1 nat are not magnified. Cosines are divided by .1
before their softmax, which would otherwise be nearly flat. Training takes three epochs. What came of it:
docs/results/cfrag.md. Rows carry the feedback in their name: "cfrag, likelihood feedback".

pbr-jax run configs/cfrag_small.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Distillation, Feedback, UserEncoder, tuning
from pbr_jax.methods import neighbours, retrieve, select


def get_config() -> Config:
    distillation = Distillation(teacher="bounded_z_scores", teacher_temperature=0.1)
    cosines = Distillation(teacher="bounded_z_scores", teacher_temperature=0.1, student_temperature=0.1)
    return Config(
        system="cfrag, likelihood feedback",
        collaboration="text",
        limit_training=240,
        neighbours=neighbours.Contrastive(m=4),
        user_encoder=UserEncoder(max_documents=32),
        feedback=Feedback(metric="likelihood", limit=60),
        retrieve=retrieve.Tuned(k=3, distillation=cosines, training=tuning(epochs=3)),
        select=select.Tuned(k=3, max_length=128, distillation=distillation, training=tuning(epochs=3)),
    )
