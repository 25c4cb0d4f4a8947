"""ClusterRAG, hybrid: own documents and those of the most similar user in the cohort, by late interaction.

Nkhata et al., "ClusterRAG: Cluster-Based Collaborative Filtering for Personalized Retrieval-Augmented
Generation", 2026, with the paper's values. The collaborative mode is `--neighbours.own off --neighbours.m 1`,
the user-only mode `--neighbours.m 1`. configs/clusterrag_as_released.py follows the released code. What the
paper leaves open, and what was chosen: docs/papers/clusterrag.md.

The paper's models are ColBERTv2, for users and documents, and FLAN-T5-base, with all weights tuned. Set them
by `--encoder.model FOLDER` and `--llm.model FOLDER`. The defaults also run: MiniLM, whose token states are
compared without projection, and SmolLM2, which is slow to tune on a CPU. On a CPU, use clusterrag_small.

Other users' documents enter prompts, so `collaboration` is text.

pbr-jax run clusterrag --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

from pbr_jax.config import Config, Encoder, Optimizer, Prompt, Training, TunedGenerator
from pbr_jax.methods import generate, neighbours, retrieve, select


def get_config() -> Config:
    optimizer = Optimizer(name="adamw", learning_rate=5e-5, weight_decay=1e-4, schedule="linear", warmup=0.05)
    return Config(
        system="clusterrag",
        collaboration="text",
        encoder=Encoder(max_length=256),
        neighbours=neighbours.Cohorts(m=2),
        retrieve=retrieve.TwoStage(k=2),
        select=select.TopK(k=2),
        prompt=Prompt(max_tokens=512, gamma=0.55),
        generate=generate.Ipa(max_new_tokens=128, num_beams=4),
        generator=TunedGenerator(
            method="full",
            documents=("pipeline",),
            k=2,
            limit=None,
            training=Training(epochs=30, batch_size=16, patience=30, optimizer=optimizer),
        ),
    )
