"""Nodes for the text encoder and the vectors of all documents."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pbr_jax.base.types import Params
from pbr_jax.cache.code import code_of
from pbr_jax.corpus.search import EngineSearch, Kind, Search, shared_search
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors, VectorStore, complete
from pbr_jax.graph import Node, Stage, Value, builds_nodes
from pbr_jax.index import engines
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.options import Encoder
from pbr_jax.stages.run import Run, enable_compilation_cache, keep_measures, once
from pbr_jax.stages.together import by_texts
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.lengths import lengths


@once
def encoder(run: Run) -> Node:
    """The pretrained text encoder of `encoder.model` (`pbr_jax.text.encode.TextEncoder`).

    `encoder.encode(texts, role="query")` returns vectors, float32 [n d]. The other role is "document".
    """
    options = run.config.encoder
    return Value("encoder", (options,), {}, _encoder, identity=partial(_told, options))


def _told(options: Encoder) -> list[Any]:
    made = _encoder(options)
    return [made.vectors_key("query"), made.vectors_key("document")]


@once
def tuned(run: Run, params: Stage, unit: bool = True) -> Node:
    """The text encoder with another `tower` in its parameters. `unit`: its vectors have unit length."""
    needs = {"params": params, "untuned": encoder(run)}
    return Value("tuned encoder", (run.config.encoder, params, unit), needs, _tuned, identity=lambda: unit)


@once
def documents(run: Run, encoder: Node, label: str = "embed") -> Node:
    """The vectors of all documents, computed by an encoder and indexed by the row numbers of the store.

    `embeddings[rows]` returns float32 [r d]. Vectors are stored on disk and read when they are accessed.
    """
    needs = {"store": run.documents, "encoder": encoder}
    encoded = Stage("embed", (), needs, _embed, _nothing, label=label, together=by_texts)
    return Value("vectors", (), {**needs, "encoded": encoded}, _vectors)


@once
def shared(run: Run, embeddings: Node, index: Kind) -> Node:
    """The search in shared documents, and in users' documents if the engine holds them.

    Args:
      run: the argument of `needs`.
      embeddings: the node from `documents`.
      index: `auto`, `per_user` or the name of an engine. Engines with files on disk are filled beforehand.
    """
    needs = {"store": run.documents, "embeddings": embeddings}
    if index == "per_user":
        return Value("shared documents", (index,), needs, _shared)
    named = engines.ENGINES if index == "auto" else (index,)
    kinds = [engines.load(name) for name in named]
    options = (index, tuple(map(code_of, kinds)))  # what they propose, no import says
    holds = run.config.benchmark.shares or (index != "auto" and kinds[0].everything)
    if holds and any(kind.saves for kind in kinds):
        needs["saved"] = Stage("index", options, needs, _index, _nothing, check=lambda: _check(index, run))
    return Value("shared documents", options, needs, _shared, check=lambda: _check(index, run))


@builds_nodes
def searched(run: Run) -> dict[str, Node]:
    """The encoder and the document vectors that the config's retriever uses, as two entries for `needs`.

    They are `{"encoder": ..., "embeddings": ...}`, from the tuned encoder if the retriever is tuned.
    """
    plain, own = encoder(run), run.config.retrieve.encoder(run)
    if own is None or own is plain:
        return {"encoder": plain, "embeddings": documents(run, plain)}
    return {"encoder": own, "embeddings": documents(run, own, "embed_tuned")}


def _encoder(options: Encoder) -> TextEncoder:
    return _loaded(options, fingerprint(locate(options.model)))


@lru_cache(maxsize=2)
def _loaded(options: Encoder, content: str) -> TextEncoder:
    """Sweeps share the loaded weights, as long as the same lie there."""
    return TextEncoder(options)


def _tuned(options: Encoder, stage: Stage, unit: bool, *, params: Params, untuned: Any) -> TextEncoder:
    return TextEncoder(options, tuned=(params["tower"], stage.key), unit=unit)


@builds_nodes
def _check(index: Kind, run: Run) -> None:
    if index != "auto" and (engines.load(index).everything or run.documents.value.has_shared):
        engines.load(index).check_installed()


def _embed(folder: Path, *, store: Store, encoder: TextEncoder) -> None:
    enable_compilation_cache()
    complete(store, VectorStore(encoder), "embed")
    prefix = encoder.prefix("document")
    keep_measures(folder, lengths(encoder.tokenizer, (prefix + text for _, text in store.texts())))


def _nothing(folder: Path) -> None:
    """The vectors lie in the cache, by content, and so do the files of engines."""


def _vectors(*, store: Store, encoder: TextEncoder, encoded: None) -> Vectors:
    return Vectors(store, VectorStore(encoder))


def _index(folder: Path, index: Kind, code: object, *, store: Store, embeddings: Vectors) -> None:
    search = shared_search(store, embeddings, index)
    assert isinstance(search, EngineSearch)
    search.follow("index")


def _shared(
    index: Kind, code: object = None, *, store: Store, embeddings: Vectors, saved: None = None
) -> Search:
    return shared_search(store, embeddings, index)
