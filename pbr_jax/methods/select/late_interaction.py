"""Late interaction of query and document (ColBERT's MaxSim): ClusterRAG's order, behind any retriever."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pbr_jax.graph import Node
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.options import IDLE
from pbr_jax.parts import late_interaction as late
from pbr_jax.parts.late_interaction import TokenVectors
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.text.token_encoder import TokenEncoder


@dataclass(frozen=True, kw_only=True)
class LateInteraction(ByScore):
    """Each token of the query finds its best match in the document; the matches add up."""

    method: Literal["late_interaction"] = "late_interaction"
    # a ColBERT's folder, or any encoder's, whose states are compared without projection; "": encoder.model
    model: str = field(default="", metadata=IDLE)
    query_length: int | None = None  # tokens; None: as the model's folder says
    document_length: int | None = None

    def check(self) -> None:
        super().check()
        self.at_least("query_length", 1)
        self.at_least("document_length", 1)

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
