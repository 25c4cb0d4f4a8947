"""A user's memory as a retriever of LlamaIndex. Needs the package `llama-index-core`, from 0.12 on."""

from typing import Any

from llama_index.core.retrievers import BaseRetriever  # type: ignore[import-not-found]
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode  # type: ignore[import-not-found]

from pbr_jax.base.types import Candidate
from pbr_jax.system import System


class Retriever(BaseRetriever):
    """The documents of a `System` that one user's question finds.

    `Retriever(pbr_jax.open("runs/dense"), "9", k=4).retrieve("the lake")`
    """

    def __init__(self, system: System, user: str, k: int = 4, **options: Any) -> None:
        self._system, self._user, self._k = system, user, k
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._system.search(self._user, query_bundle.query_str, self._k)
        return [
            NodeWithScore(
                node=TextNode(text=one.document.text, id_=one.document.id, metadata=about(one)),
                score=one.score,
            )
            for one in found
        ]


def about(one: Candidate) -> dict[str, Any]:
    """The fields of a candidate's document, its date and score."""
    fields = {name: text for name, text in one.document.fields.items() if name != "text"}
    dated = {} if one.document.time is None else {"time": one.document.time}
    return {**fields, **dated, "score": one.score, "shared": one.document.shared}
