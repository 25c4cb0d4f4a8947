"""ClusterRAG as in its released code, where that differs from the paper (configs/clusterrag.py).

- Users: neighbours are ranked by cosine inside the cluster. Users' means are clustered without scaling them
  to unit length, and their vectors come from texts of up to 512 tokens.
- Documents, as in the code for ColBERT: every cluster is visited and all documents are then ranked by score,
  so the two stages amount to a flat ranking by MaxSim (`top_clusters None`). The code does this only for a
  ColBERT model, and the default is not one: set `--encoder.model FOLDER` to one. For Contriever and BGE,
  use configs/clusterrag_pooled_as_released.py.
- Prompts: one document (the README of the code: `--num_retrieved 1`), gamma .6, LaMP's structure of prompts.
- Half precision: bfloat16.

The following is not as in the code. HDBSCAN of documents is computed once for each profile, not once for each
query over all profiles together. Nobody is left out; the code skips questions whose user has no neighbour or
no history, so its modes answer different questions. Documents of two users never share an id. The users are
those of the training and evaluated splits. For users' vectors the code uses ColBERT without its projection;
for this set `--encoder.model FOLDER --encoder.pooling mean --encoder.normalize yes`. The code chooses the
epoch on the split that it reports; here held-out training users choose it. Models are the defaults; the code
has colbertv2.0 and flan-t5-base.

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
