"""Late interaction of query and document (ColBERT's MaxSim): ClusterRAG's order, behind any retriever."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.options import IDLE
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages import late_interaction as late
from pbr_jax.stages.late_interaction import TokenVectors
from pbr_jax.stages.run import Run
from pbr_jax.text.token_encoder import TokenEncoder


@dataclass(frozen=True, kw_only=True)
class LateInteraction(ByScore):
    """Late interaction (MaxSim). The similarity of each query token to its best match in the document is
    summed."""

    method: Literal["late_interaction"] = "late_interaction"
    # folder of a ColBERT model, or of any encoder, whose token states are then compared without projection.
    # "": encoder.model
    model: str = field(default="", metadata=IDLE)
    # maximum length of a query, in tokens. None: as the model's folder specifies
    query_length: int | None = None
    # maximum length of a document, in tokens. None: as the model's folder specifies
    document_length: int | None = None

    def check(self) -> None:
        super().check()
        self.at_least("query_length", 1)
        self.at_least("document_length", 1)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        encoder = late.encoder(run, self.model, self.query_length, self.document_length)
        return {"encoder": encoder, "tokens": late.documents(run, encoder), **self.sharing(run)}

    def slot(
        self,
        tally: Tally,
        *,
        encoder: TokenEncoder,
        tokens: TokenVectors,
        backfill_gains: Curve | None = None,
    ) -> SelectSlot:
        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            asked = encoder.encode([" ".join(query.texts) for query in queries], "query")
            return [
                tokens.max_sims(query, [candidate.row for candidate in ranking])
                for query, ranking in zip(asked, rankings, strict=True)
            ]

        return by_score(self, score, backfill_gains)
