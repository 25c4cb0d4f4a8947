"""ClusterRAG as in its released code with Contriever or BGE: pooled vectors, one cluster opened.

Documents are clustered by their pooled vectors; those in no cluster form one together. The cluster whose
centroid has the highest cosine with the query's vector is opened, and the documents inside are ranked by the
same cosine. All else is as in configs/clusterrag_as_released.py, which for ColBERT ranks all documents by
MaxSim.

The following is not as in the code. The clustered vectors follow `encoder.normalize`: they have unit length,
like those that users are averaged from; the code does not scale them. Each profile is clustered by itself,
not those of all users together.

pbr-jax run clusterrag_pooled_as_released --encoder.model FOLDER --benchmark.name lamp_7
--benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from pathlib import Path

from pbr_jax.config import Config
from pbr_jax.methods import retrieve


def get_config() -> Config:
    colbert: Config = runpy.run_path(str(Path(__file__).parent / "clusterrag_as_released.py"))["get_config"]()
    return dataclasses.replace(
        colbert,
        system="clusterrag_pooled_as_released",
        retrieve=retrieve.TwoStage(k=1, inside="pooled", top_clusters=1, noise="one_cluster"),
    )
