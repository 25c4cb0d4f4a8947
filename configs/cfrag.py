"""CFRAG.

Similar users by contrastive learning; retriever and reranker tuned on what the language model makes of
them.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation",
SIGIR 2025, https://arxiv.org/abs/2504.05731; the paper's equations. configs/cfrag_as_released.py follows
the code.

Other users' documents enter prompts: `collaboration` says so.

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
