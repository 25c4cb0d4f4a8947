"""CFRAG: similar users by contrastive learning; retriever and reranker tuned on feedback.

The language model gives the feedback, one value for each candidate document.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation",
SIGIR 2025, https://arxiv.org/abs/2504.05731. This config follows the paper's equations;
configs/cfrag_as_released.py follows the released code.

Other users' documents enter prompts, so `collaboration` is text.

pbr-jax run configs/cfrag.py --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config
from pbr_jax.methods import neighbours, retrieve, select


def get_config() -> Config:
    return Config(
        system="cfrag",
        collaboration="text",
        neighbours=neighbours.Contrastive(m=4),
        retrieve=retrieve.Tuned(k=5),
        select=select.Tuned(k=5),
    )
