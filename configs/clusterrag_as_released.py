"""ClusterRAG as its released code computes it, where that differs from the paper (configs/clusterrag.py).

- Users: neighbours by cosine inside the cluster, users' means clustered without scaling them to unit length;
  texts of 512 tokens for their vectors.
- Documents, the path of ColBERT: every cluster is visited and all documents are then ranked by score, so the
  two stages are a flat ranking by MaxSim (`top_clusters None`). The code takes this path for a ColBERT alone,
  and the default model is none: give `--encoder.model FOLDER` that of one, or take the path of Contriever and
  BGE, which is configs/clusterrag_pooled_as_released.py.
- One document in the prompt (the README of its code: `--num_retrieved 1`), gamma .6, LaMP's structure of
  prompts.
- Half precision: bfloat16.

Left as here: HDBSCAN of documents is computed once a profile, not once a query over all profiles together;
nobody is left out (the code skips questions whose user has no neighbour or no history, so that modes answer
different questions); documents of two users never share an id; users are train and evaluated ones alike. The
body of ColBERT without its projection, which the code takes for users' vectors, is what `--encoder.model
FOLDER --encoder.pooling mean --encoder.normalize yes` gives. The code chooses the epoch by the split that it
reports; here held-out training users do. Models are the defaults (the code: colbertv2.0 and flan-t5-base).

pbr-jax run clusterrag_as_released --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from pathlib import Path

from pbr_jax.config import Config, Encoder, Prompt
from pbr_jax.methods import neighbours, retrieve, select


def get_config() -> Config:
    paper: Config = runpy.run_path(str(Path(__file__).parent / "clusterrag.py"))["get_config"]()
    training = dataclasses.replace(paper.generator.training, dtype="bfloat16")
    return dataclasses.replace(
        paper,
        system="clusterrag_as_released",
        seed=42,
        encoder=Encoder(max_length=None, pooling="mean", normalize="yes"),
        neighbours=neighbours.Cohorts(m=2, unit=False, similarity="cosine"),
        retrieve=retrieve.TwoStage(k=1, top_clusters=None),
        select=select.TopK(k=1),
        prompt=Prompt(form="lamp", max_tokens=512, gamma=0.6),
        generator=dataclasses.replace(paper.generator, k=1, training=training),
    )
