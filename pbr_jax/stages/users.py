"""Users as vectors, computed from the documents that they had when the question was asked.

So vectors of users outside the training data can be computed, and no vector depends on a later document.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Example, Params, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.data import views
from pbr_jax.graph import Node, Stage, Value, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.options import UserEncoder
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run, chunks, enable_compilation_cache, once
from pbr_jax.stages.together import by_rows
from pbr_jax.stages.trained import check_training, is_saved, load_saved, save_fitted
from pbr_jax.text.encode import TextEncoder

_TOGETHER = 256  # users encoded at once

Encode = Callable[[Sequence[np.ndarray], Matrix], np.ndarray]
"""(histories as rows, oldest first; document embeddings [n d]) -> users [u d]; zeros without documents."""


def mean(histories: Sequence[np.ndarray], embeddings: Matrix) -> np.ndarray:
    """The mean of each history's document embeddings, float32 [u d] (ClusterRAG, Eq. 1)."""
    found = np.zeros((len(histories), embeddings.shape[1]), np.float32)
    for place, rows in enumerate(histories):
        if len(rows):
            found[place] = np.asarray(embeddings[rows], np.float32).mean(axis=0)
    return found


def transformer(params: Params, model: UserTransformerConfig) -> Encode:
    """The user encoder of `models.user_transformer` with these parameters."""
    apply = jax.jit(user_transformer(model).apply)

    def encode(histories: Sequence[np.ndarray], embeddings: Matrix) -> np.ndarray:
        width = min(model.max_documents, max(map(len, histories), default=1) or 1)
        found = np.zeros((len(histories), model.width), np.float32)

        def begin(start: int) -> tuple[slice, Any]:
            some = [*histories[start : start + _TOGETHER]]
            place = slice(start, start + len(some))
            some += [some[0][:0]] * (min(_TOGETHER, len(histories)) - len(some))  # one shape, one compilation
            seen = views.padded(some, [None] * len(some), width)
            return place, apply(params, np.asarray(embeddings[seen.rows], np.float32), seen.mask)

        for place, users in fetched(map(begin, range(0, len(histories), _TOGETHER))):
            found[place] = users[: place.stop - place.start]
        return found

    return encode


def oldest_first(store: Store, rows: np.ndarray) -> np.ndarray:
    """Rows sorted by date. Rows without a date are first, in the order of the profile."""
    return rows[np.argsort(np.nan_to_num(store.times[rows], nan=-np.inf), kind="stable")]


class Users:
    """The users of a store as vectors.

    Args:
      store: the store of users and documents.
      embeddings: the vectors of all documents, float32 [n d], indexed by the row numbers of `store`.
      encoder: the encoder of these vectors. For a user without history, it encodes the query as a document.
      encode: maps histories to user vectors.
    """

    def __init__(self, store: Store, embeddings: Matrix, encoder: TextEncoder, encode: Encode) -> None:
        self.store, self.embeddings, self.encoder, self.encode = store, embeddings, encoder, encode

    @property
    def dim(self) -> int:
        """The dimension of a vector."""
        return self.embeddings.shape[1]

    def asking(self, examples: Sequence[Example]) -> np.ndarray:
        """The vectors of the asking users, float32 [e d], from the histories that the examples see."""
        return np.concatenate([np.zeros((0, self.dim), np.float32), *map(self._asking, chunks(examples))])

    def _asking(self, examples: Sequence[Example]) -> np.ndarray:
        histories = [oldest_first(self.store, self.store.visible(e, e.user_id)) for e in examples]
        found = self.encode(histories, self.embeddings)
        cold = [place for place, history in enumerate(histories) if not len(history)]
        if cold:
            queries = self.encoder.encode([examples[place].query for place in cold], role="document")
            found[cold] = self.encode([np.array([i]) for i in range(len(cold))], queries)
        return found

    def at(self, moment: float | None) -> np.ndarray:
        """Vectors of all users by code, float32 [u d], from their documents before a time; zeros if none."""
        histories = [oldest_first(self.store, self.store.before(user, moment)) for user in self.store.users]
        return self.encode(histories, self.embeddings)


# -- nodes -----------------------------------------------------------------------------------------


@builds_nodes
def users(run: Run) -> Node:
    """The user vectors of the config's `neighbours`; if it has none, those of the trained user encoder."""
    return run.config.neighbours.users(run) or trained(run)


@once
def means(run: Run) -> Node:
    """User vectors as the means of their documents' vectors."""
    return Value("users, means", (), _stands_on(run), _means)


@once
def trained(run: Run) -> Node:
    """User vectors of the trained encoder of histories (CFRAG section 4.1)."""
    options = run.config.user_encoder
    return Value("users, trained", (options,), {**_stands_on(run), "params": encoder(run)}, _trained)


@once
def encoder(run: Run) -> Stage:
    """Parameters of the user encoder, trained without labels on the histories of users in both splits.

    For evaluated users it reads only documents that all of their evaluated questions see, since later
    documents could contain the answers to earlier questions.
    """
    run.learns_from_others(
        "the user encoder (neighbours.method contrastive, or retriever and reranker that know users)"
    )
    options = run.config.user_encoder
    return Stage(
        "user_encoder",
        (options, run.config.seed),
        {**_stands_on(run), "store": run.documents},  # without labels, so one serves all folds
        _train,
        load_saved,
        check=partial(_check, run),
        together=by_rows,
    )


@builds_nodes
def _check(run: Run) -> None:
    check_training(run.config.user_encoder.training)
    if not run.documents.value.summary.documents:
        raise UserError(
            "the user encoder learns from users' documents, and the data has none; take data with histories, "
            "or another neighbours.method"
        )


@builds_nodes
def _stands_on(run: Run) -> dict[str, Node]:
    encoder = vectors.encoder(run)
    return {"store": run.data, "embeddings": vectors.documents(run, encoder), "encoder": encoder}


def _means(*, store: Store, embeddings: Matrix, encoder: TextEncoder) -> Users:
    return Users(store, embeddings, encoder, mean)


def _trained(
    options: UserEncoder, *, store: Store, embeddings: Matrix, encoder: TextEncoder, params: Params
) -> Users:
    params = dict(params)
    moved = params.pop("documents", None)  # those that were trained
    known = embeddings if moved is None else np.asarray(moved)
    return Users(store, known, encoder, transformer(params, _model(options, encoder)))


def _model(options: UserEncoder, encoder: TextEncoder) -> UserTransformerConfig:
    return UserTransformerConfig(
        width=encoder.dim,
        max_documents=options.max_documents,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        dropout=options.dropout,
    )


def _train(
    folder: Path, options: UserEncoder, seed: int, *, store: Store, embeddings: Matrix, encoder: TextEncoder
) -> None:
    if is_saved(folder):
        return
    from pbr_jax.train import user_encoder

    enable_compilation_cache()
    histories = [oldest_first(store, store.training_rows(user)) for user in store.users]
    rates = views.Rates(options.crop, options.mask, options.reorder)
    objective = user_encoder.Objective(rates, options.loss, options.temperature, options.train_embeddings)
    model = _model(options, encoder)
    fitted = user_encoder.train(histories, embeddings, model, objective, options.training, folder, seed=seed)
    save_fitted(fitted, folder, "user_encoder")
