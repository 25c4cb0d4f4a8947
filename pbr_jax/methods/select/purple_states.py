"""States of tokens by the frozen encoder: of all documents, and of the queries of some questions."""

from functools import partial
from pathlib import Path

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage
from pbr_jax.stages import token_vectors as ragged
from pbr_jax.stages import vectors
from pbr_jax.stages.rankings import Questions
from pbr_jax.stages.run import Run, once
from pbr_jax.stages.token_vectors import Ragged
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.token_states import TokenStates


@once
def documents(run: Run, tokens: int) -> Node:
    """States of all documents, row by row as in the store, cut to so many tokens."""
    needs = {"store": run.documents, "encoder": vectors.encoder(run)}
    return Stage("token_states", (tokens,), needs, _documents, Ragged)


@once
def queries(run: Run, asked: Questions, tokens: int) -> Node:
    """States of the queries of some questions, in their order."""
    needs = {"store": run.data, "encoder": vectors.encoder(run)}
    return Stage("query_states", (tokens, asked), needs, _queries, Ragged)


def _documents(folder: Path, tokens: int, *, store: Store, encoder: TextEncoder) -> None:
    encode = partial(TokenStates(encoder, tokens).encode, role="document")
    ragged.keep(folder, (text for _, text in store.texts()), store.rows, encode, "token states")


def _queries(folder: Path, tokens: int, asked: Questions, *, store: Store, encoder: TextEncoder) -> None:
    encode = partial(TokenStates(encoder, tokens).encode, role="query")
    texts = (example.query for example in asked.read(store))
    ragged.keep(folder, texts, asked.count(store), encode, "token states")
