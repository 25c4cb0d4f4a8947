"""ClusterRAG at a size for a CPU core: LoRA on 300 training questions, one epoch, prompts of 192 tokens.

One adapter is trained on a mixture of prompts: without documents, with two own ones, with two of a cohort
neighbour, and with one of each. Each question is learned with two of these four, drawn by the seed. The
adapter answers in all modes: configs/ablations/clusterrag_small.py. All else is as in configs/clusterrag.py.

pbr-jax run clusterrag_small --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Encoder, Prompt, TunedGenerator
from pbr_jax.methods import neighbours, retrieve, select


def get_config() -> Config:
    return Config(
        system="clusterrag",
        collaboration="text",
        encoder=Encoder(max_length=256),
        neighbours=neighbours.Cohorts(m=2),
        retrieve=retrieve.TwoStage(k=2),
        select=select.TopK(k=2),
        prompt=Prompt(max_tokens=192, gamma=0.55),
        generator=TunedGenerator(
            method="lora",
            documents=("none", "own", "neighbours", "own_neighbours"),
            per_question=2,
            k=2,
            limit=300,
        ),
    )
