"""The rows of ClusterRAG's tables. Most of them use one generator, tuned on a mixture of prompts.

The rows vary the modes (Table 2), retrievers (Table 3), omitted parts (Table 5), gamma, L_max and beams
(Table 7), k (Table 8) and m (Table 9). These rows are ours: the number of opened clusters, the treatment of
noise, users by CFRAG's encoder, and the similarity inside a cohort. In Table 3, ColBERT is the row
"clusterrag", and Contriever and BGE are "pooled in clusters" with `--encoder.model FOLDER`; all of these rank
inside the opened clusters. The rows "clusterrag with ..." search whole histories. For other models without
tuning (Table 4), use `--generator.method frozen --llm.model FOLDER`. Table 10 is the metric `silhouette` of
the rows "clusterrag" and "k-means". For a separate generator for each row, as in the paper, use
`--generator.documents pipeline`.

pbr-jax sweep ablations/clusterrag --benchmark.name lamp_7 --benchmark.root FOLDER --out DIR
"""

import dataclasses
import runpy
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Overrides

ALONE: Overrides = {"neighbours.own": False, "neighbours.m": 1}
MODES: dict[str, Overrides] = {
    "clusterrag": {},
    "user-only": {"neighbours.m": 1},
    "collaborative": ALONE,
    "zero_shot": {"neighbours.m": 1, "retrieve.method": "none"},
}
INSIDE: dict[str, Overrides] = {
    f"{name} in clusters": {"retrieve.inside": name} for name in ("random", "recency", "bm25_lamp", "pooled")
}
PARTS: dict[str, Overrides] = {
    "w/o user clustering": {"neighbours.method": "random"},
    "w/o similarity in the cluster": {"neighbours.similarity": "random"},
    "w/o document ranking": {"retrieve.inside": "random", "retrieve.top_clusters": None},
    "centroids only": {"retrieve.inside": "centroid", "retrieve.top_clusters": None},
    "k-means": {"neighbours.clustering": "k_means", "neighbours.num_clusters": 10},
}
OURS: dict[str, Overrides] = {
    **{f"noise {noise}": {"neighbours.noise": noise} for noise in ("nearest", "alone")},
    **{f"similarity {name}": {"neighbours.similarity": name} for name in ("dot", "maxsim_documents")},
    "users by CFRAG's encoder": {"neighbours.vectors": "trained"},
    "flat": {"retrieve.top_clusters": None},
    "flat, late interaction of dense candidates": {
        "retrieve.method": "dense", "retrieve.k": 20, "select.method": "late_interaction", "select.k": 2,
    },
    **{f"{count} clusters opened": {"retrieve.top_clusters": count} for count in (1, 3, 4)},
}  # fmt: skip


def get_config() -> Config:
    paper: Config = runpy.run_path(str(Path(__file__).parents[1] / "clusterrag.py"))["get_config"]()
    mixture = ("none", "own", "neighbours", "own_neighbours")
    return dataclasses.replace(paper, generator=dataclasses.replace(paper.generator, documents=mixture))


def sweep() -> Iterator[Overrides]:
    rows: dict[str, Overrides] = {**MODES}
    rows |= {
        f"clusterrag with {name}": {"retrieve.method": name}
        for name in ("random", "recency", "bm25_lamp", "dense")
    }
    rows |= {**INSIDE, **PARTS, **OURS}
    rows |= {f"k = {k}": {"neighbours.m": k + 1} for k in range(2, 6)}
    rows |= {f"m = {m}": {"select.k": m, "retrieve.k": m} for m in (1, *range(3, 13))}
    rows |= {f"gamma {tenths / 10}": {"prompt.gamma": tenths / 10} for tenths in range(1, 10)}
    rows |= {f"L_max {length}": {"prompt.max_tokens": length} for length in (64, 128, 256, 1024)}
    rows |= {f"{beams} beams": {"generate.num_beams": beams} for beams in (1, 2, 3, 5, 6)}
    for name, row in rows.items():
        yield {"system": name, **row}
