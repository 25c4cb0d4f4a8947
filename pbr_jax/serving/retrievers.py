"""A user's memory as a retriever of LangChain and of LlamaIndex.

Classes of these frameworks can be defined only where they are installed, so functions return them.
"""

from functools import cache
from typing import Any

from pbr_jax.base.types import Candidate
from pbr_jax.system import System


@cache
def langchain() -> Any:
    """The class of LangChain's retriever: `langchain()(system=system, user="9", k=4).invoke("the lake")`.

    Needs the package `langchain-core`.
    """
    from langchain_core.callbacks import CallbackManagerForRetrieverRun  # type: ignore[import-not-found]
    from langchain_core.documents import Document  # type: ignore[import-not-found]
    from langchain_core.retrievers import BaseRetriever  # type: ignore[import-not-found]

    class Retriever(BaseRetriever):
        """The documents of a `System` that one user's question finds."""

        system: Any
        user: str
        k: int = 4

        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
        ) -> list[Document]:
            found = self.system.search(self.user, query, self.k if k is None else k)
            return [
                Document(page_content=one.document.text, id=one.document.id, metadata=_about(one))
                for one in found
            ]

    return Retriever


@cache
def llama_index() -> Any:
    """The class of LlamaIndex's retriever: `llama_index()(system, "9", k=4).retrieve("the lake")`.

    Needs the package `llama-index-core`.
    """
    from llama_index.core.retrievers import BaseRetriever  # type: ignore[import-not-found]
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode  # type: ignore[import-not-found]

    class Retriever(BaseRetriever):
        """The documents of a `System` that one user's question finds."""

        def __init__(self, system: System, user: str, k: int = 4, **options: Any) -> None:
            self._system, self._user, self._k = system, user, k
            super().__init__(**options)

        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            found = self._system.search(self._user, query_bundle.query_str, self._k)
            return [
                NodeWithScore(
                    node=TextNode(text=one.document.text, id_=one.document.id, metadata=_about(one)),
                    score=one.score,
                )
                for one in found
            ]

    return Retriever


def _about(one: Candidate) -> dict[str, Any]:
    """The fields of a candidate's document, its date and score."""
    fields = {name: text for name, text in one.document.fields.items() if name != "text"}
    dated = {} if one.document.time is None else {"time": one.document.time}
    return {**fields, **dated, "score": one.score, "shared": one.document.shared}
