"""A user's memory as a retriever of LangChain. Needs the package `langchain-core`, from 0.3 on."""

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun  # type: ignore[import-not-found]
from langchain_core.documents import Document  # type: ignore[import-not-found]
from langchain_core.retrievers import BaseRetriever  # type: ignore[import-not-found]

from pbr_jax.base.types import Candidate


class Retriever(BaseRetriever):
    """The documents of a `System` that one user's question finds.

    `Retriever(system=pbr_jax.open("runs/dense"), user="9", k=4).invoke("the lake")`
    """

    system: Any
    user: str
    k: int = 4

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = self.system.search(self.user, query, self.k if k is None else k)
        return [
            Document(page_content=one.document.text, id=one.document.id, metadata=about(one)) for one in found
        ]


def about(one: Candidate) -> dict[str, Any]:
    """The fields of a candidate's document, its date and score."""
    fields = {name: text for name, text in one.document.fields.items() if name != "text"}
    dated = {} if one.document.time is None else {"time": one.document.time}
    return {**fields, **dated, "score": one.score, "shared": one.document.shared}
