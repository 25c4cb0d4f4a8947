"""ClusterRAG as its released code computes it with Contriever or BGE: pooled vectors, one cluster opened.

Documents are clustered by their pooled vectors, the cluster whose centroid has the highest cosine with the
query's is opened (documents in no cluster are one), and those inside are ranked by the cosine with the query.
All else is configs/clusterrag_as_released.py, whose path of ColBERT ranks all documents by MaxSim.

Left as here: the vectors that are clustered are those of `encoder.normalize`, of unit length as users' are
averaged from (the code's are not scaled); a profile is clustered by itself, not those of all users together.

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
