"""Trains LUF's retriever on labelled documents (LUF, anonymous ACL submission, section 2.2).

Only documents that were retrieved for a question have labels. Unlabelled documents are negatives only if they
are D+ or D^r of another question in the batch (Eq. 2). What moves is a map of query vectors, the tower of
queries, or that of both.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pbr_jax.base.types import Feedback, Params
from pbr_jax.losses.contrastive import encode_in_chunks, info_nce
from pbr_jax.losses.distillation import kl_distillation
from pbr_jax.losses.margin import rank_weighted_margin
from pbr_jax.losses.reduction import masked_mean
from pbr_jax.models import bert
from pbr_jax.models.dual_encoder import Tokens, dual_encoder
from pbr_jax.options import LUFLoss, Training
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.padding import multiple, power_of_two, row_sizes
from pbr_jax.train.batches import Rows
from pbr_jax.train.loop import Fitted, TrainingTask, fit
from pbr_jax.train.retriever import model_config, token_arrays
from pbr_jax.train.sharding import Batch

DocumentVectors = Callable[[np.ndarray], np.ndarray]
"""Rows of the store to vectors [c d]."""

Texts = Callable[[np.ndarray], list[str]]
"""Rows of the store to the documents' texts."""

_LABELS = 8  # of a question: padded to a multiple of it


class Moving(NamedTuple):
    """The model that is trained.

    `arrays(questions, rows)` returns the inputs of questions [b ...] and of documents [c ...], given by their
    rows of the store (-1: padding). `vectors(params, batch, key)` returns unit vectors [b d] and [c d]. `key`
    is the random key of dropout; None: no dropout. `heads`: parameters with the learning rate of heads.
    """

    params: Callable[[], Params]
    arrays: Callable[[np.ndarray, np.ndarray], Batch]
    vectors: Callable[[Params, dict[str, Array], Array | None], tuple[Array, Array]]
    heads: tuple[str, ...] = ()


def learn(
    moving: Moving,
    labels: Sequence[Feedback],
    loss: LUFLoss,
    training: Training,
    folder: Path,
    *,
    overlap: bool,
    seed: int,
) -> Fitted:
    """Trains on questions with labelled documents, best first, with grades from 0 to 1.

    Args:
      overlap: whether batches are formed of questions that share documents (Eq. 1). Otherwise they are
        random.

    Raises UserError if a batch is computed in parts, or if numbers are not finite.
    """
    size = training.batch_size
    if overlap:
        groups = overlap_batches([each.rows[each.values > 0] for each in labels], size)
    else:
        order = np.random.default_rng([seed, 5]).permutation(len(labels))
        groups = np.split(order, range(size, len(order), size))
    width = multiple(max(len(each.rows) for each in labels), _LABELS)

    def batch(rows: Rows) -> Batch:
        counted = [labels[i] if there else None for i, there in zip(rows.indices, rows.where)]
        arrays, documents = label_arrays(counted, loss, width)
        return moving.arrays(rows.indices, documents) | arrays | {"where": rows.where}

    def total(params: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
        queries, documents = moving.vectors(params, batch, key)
        return masked_mean(losses(queries, documents, batch, loss), batch["where"])

    task = TrainingTask(moving.params, total, len(labels), batch, groups=groups, heads=moving.heads)
    return fit(task, training, folder, seed=seed)


def label_arrays(
    labels: Sequence[Feedback | None], loss: LUFLoss, width: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The labels of a batch of b questions (None: masked) over its c documents.

    Returns:
      Arrays, and the distinct rows of the documents [c], padded with -1 to one of a few sizes c.
      `places`, `grades`, `present` [b width]: the labelled documents of each question, by index into c.
      `positive`, `contrasted` [b c]: numerator and denominator of Eq. 2. `best`, `has_best` [b positives] and
      `hard`, `ranks`, `is_hard` [b hard_negatives]: the documents of Eq. 4, by index into c.
    """
    known = [each for each in labels if each is not None]
    everything = loss.negatives == "labelled"
    pool = np.unique(np.concatenate([e.rows if everything else e.rows[e.values > 0] for e in known]))
    count = len(labels) * power_of_two(-(-len(pool) // len(labels)))
    sizes = {
        "places": width, "grades": width, "present": width, "positive": count, "contrasted": count,
        "best": loss.positives, "has_best": loss.positives,
        "hard": loss.hard_negatives, "ranks": loss.hard_negatives, "is_hard": loss.hard_negatives,
    }  # fmt: skip
    arrays = {name: np.zeros((len(labels), n), _KINDS.get(name, bool)) for name, n in sizes.items()}
    for q, each in enumerate(labels):
        if each is not None:
            _fill(arrays, q, each, pool, loss)
    return arrays, np.concatenate([pool, np.full(count - len(pool), -1)])


_KINDS = {"grades": np.float32} | dict.fromkeys(("places", "best", "hard", "ranks"), np.int32)


def _fill(arrays: dict[str, np.ndarray], q: int, labels: Feedback, pool: np.ndarray, loss: LUFLoss) -> None:
    """The row of a question, from those of its labelled documents that are among the batch's."""
    ranks = np.flatnonzero(np.isin(labels.rows, pool)) + 1
    places, grades = np.searchsorted(pool, labels.rows[ranks - 1]), labels.values[ranks - 1]
    if grades.any():
        _put(arrays, q, len(places), places=places, grades=grades, present=True)
    right = places[grades == 1]
    if not len(right):
        return
    arrays["positive"][q, right] = True
    arrays["contrasted"][q, : len(pool)] = True
    if loss.mask:
        arrays["contrasted"][q, places[(grades > 0) & (grades < 1)]] = False
    best, wrong = right[: loss.positives], np.flatnonzero(grades == 0)[: loss.hard_negatives]
    _put(arrays, q, len(best), best=best, has_best=True)
    _put(arrays, q, len(wrong), hard=places[wrong], ranks=ranks[wrong], is_hard=True)


def _put(arrays: dict[str, np.ndarray], q: int, count: int, **values: np.ndarray | bool) -> None:
    for name, value in values.items():
        arrays[name][q, :count] = value


def losses(
    queries: Float[Array, "b d"], documents: Float[Array, "c d"], batch: dict[str, Array], loss: LUFLoss
) -> Float[Array, "b"]:
    """The weighted sum of Eq. 2, 3 and 4 for each question; 0 for a question without usable labels.

    Args:
      queries, documents: unit vectors, so that inner products are cosines.
      batch: the arrays of `label_arrays`.
    """
    scores = jnp.einsum("bd,cd->bc", queries, documents, preferred_element_type=jnp.float32)
    total = jnp.zeros(len(queries), jnp.float32)
    if loss.strict:
        masks = {"positives": batch["positive"], "where": batch["contrasted"]}
        total += loss.strict * info_nce(queries, documents, temperature=loss.temperature, **masks)
    if loss.flaccid:
        total += loss.flaccid * kl_distillation(
            _taken(scores, batch["places"]),
            batch["grades"],
            student_temperature=loss.temperature,
            teacher_temperature=loss.temperature,
            where=batch["present"],
        )
    if loss.hard:
        total += loss.hard * rank_weighted_margin(
            _mean(_taken(scores, batch["best"]), batch["has_best"]),
            _taken(scores, batch["hard"]),
            batch["ranks"],
            margin=loss.margin,
            power=loss.power,
            normalize=True,
            where=batch["is_hard"],
        )
    return total


def _taken(scores: Float[Array, "b c"], places: Array) -> Float[Array, "b n"]:
    return jnp.take_along_axis(scores, places, axis=1)


def _mean(scores: Float[Array, "b n"], where: Bool[Array, "b n"]) -> Float[Array, "b"]:
    return jnp.where(where, scores, 0.0).sum(axis=1) / jnp.maximum(where.sum(axis=1), 1)


# -- batches (Eq. 1) ------------------------------------------------------------------------------------


def overlap_batches(documents: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Divides questions into batches of `size`, such that questions of a batch share documents.

    .. math:: \\mathrm{Batch}(q_i) = \\arg\\max_B \\sum_{q_j \\in B} |D_i \\cap D_j|

    The algorithm is greedy. A batch starts with the unassigned question that has the most documents. The
    question with the largest total overlap with the batch is then added until the batch is full. Ties are
    resolved by order of arrival.

    Args:
      documents: for each question in order of arrival, the distinct rows that are labelled relevant.
      size: questions per batch; the last batch has the rest.

    Returns:
      The indices of the questions of each batch, int64.

    LUF (anonymous ACL submission), Eq. 1. The paper does not specify how to find the maximum.
    """
    sizes = np.array([len(rows) for rows in documents], np.int64)
    shared = _Sharing(documents)
    free, batches = np.ones(len(documents), bool), []
    while free.any():
        batch = [int(np.argmax(np.where(free, sizes, -1)))]
        free[batch[0]] = False
        overlap = shared.with_question(batch[0])
        while len(batch) < size and free.any():
            batch.append(int(np.argmax(np.where(free, overlap, -1))))
            free[batch[-1]] = False
            overlap += shared.with_question(batch[-1])
        batches.append(np.array(batch, np.int64))
    return batches


class _Sharing:
    """How many documents each question has in common with another one."""

    def __init__(self, documents: Sequence[np.ndarray]) -> None:
        self._documents, self._count = documents, len(documents)
        pairs = [(int(row), place) for place, rows in enumerate(documents) for row in rows]
        asking: dict[int, list[int]] = {}
        for row, place in pairs:
            asking.setdefault(row, []).append(place)
        self._asking = {row: np.array(places, np.int64) for row, places in asking.items()}

    def with_question(self, place: int) -> np.ndarray:
        """The number of documents that each question shares with this one, int64 [questions]."""
        rows = self._documents[place]
        if not len(rows):
            return np.zeros(self._count, np.int64)
        places = np.concatenate([self._asking[int(row)] for row in rows])
        return np.bincount(places, minlength=self._count)


# -- what moves -----------------------------------------------------------------------------------------


def mapped(vectors: np.ndarray, documents: DocumentVectors, start: Params | None = None) -> Moving:
    """A linear map of query vectors, from the identity; documents keep theirs.

    Args:
      vectors: of the questions, [n d].
      start: `map`, [d d]; None: the identity.
    """
    dim = vectors.shape[1]

    def arrays(questions: np.ndarray, rows: np.ndarray) -> Batch:
        return {"vectors": vectors[questions], "documents": _padded(documents, rows, dim)}

    def embed(params: Params, batch: dict[str, Array], key: Array | None) -> tuple[Array, Array]:
        return bert.unit_length(batch["vectors"] @ params["map"]), batch["documents"]

    return Moving(lambda: start or {"map": jnp.eye(dim)}, arrays, embed, heads=("map",))


def query_tower(
    encoder: TextEncoder, queries: Sequence[str], documents: DocumentVectors, start: Params | None = None
) -> Moving:
    """The tower for queries alone; documents keep theirs. `start`: its `tower`; None: the encoder's."""
    apply = dual_encoder(model_config(encoder, 1, None)).apply
    tokens = token_arrays(encoder, queries, "query")

    def arrays(questions: np.ndarray, rows: np.ndarray) -> Batch:
        return _tokens("query", tokens, questions) | {"documents": _padded(documents, rows, encoder.dim)}

    def embed(params: Params, batch: dict[str, Array], key: Array | None) -> tuple[Array, Array]:
        texts = Tokens(batch["query_ids"], batch["query_mask"])
        found = apply(params, queries=texts, key=key, rows=batch["row"])
        return found.queries, batch["documents"]

    return Moving(lambda: start or _tower(encoder), arrays, embed)


def both(encoder: TextEncoder, queries: Sequence[str], texts: Texts, start: Params | None = None) -> Moving:
    """One tower for queries and documents, which is computed for so many documents at a time as there are
    questions. `start`: its `tower`; None: the encoder's."""
    apply = dual_encoder(model_config(encoder, 1, None)).apply
    tokens = token_arrays(encoder, queries, "query")

    def arrays(questions: np.ndarray, rows: np.ndarray) -> Batch:
        read = token_arrays(encoder, texts(rows[rows >= 0]), "document")
        places = np.maximum(np.cumsum(rows >= 0) - 1, 0)  # any text where there is no document
        found = _tokens("query", tokens, questions) | _tokens("document", read, places)
        return found | {"document_row": rows.astype(np.int32)}

    def embed(params: Params, batch: dict[str, Array], key: Array | None) -> tuple[Array, Array]:
        asked = Tokens(batch["query_ids"], batch["query_mask"])

        def encode(params: Params, some: tuple[Array, ...]) -> Float[Array, "k d"]:
            ids, mask, rows = some
            return apply(params, documents=Tokens(ids, mask), key=key, rows=rows).documents

        read = batch["document_ids"], batch["document_mask"], batch["document_row"]
        documents = encode_in_chunks(encode, params, read, chunk_size=len(asked.ids))
        return apply(params, queries=asked, key=key, rows=batch["row"]).queries, documents

    return Moving(lambda: start or _tower(encoder), arrays, embed)


def _tower(encoder: TextEncoder) -> Params:
    return {"tower": bert.load(encoder.folder)[1]}


def _tokens(name: str, tokens: Tokens, chosen: np.ndarray) -> Batch:
    """Tokens of some texts, in rows of few lengths."""
    ids, mask = tokens.ids[chosen], tokens.mask[chosen]
    longest = int(mask.sum(axis=1).max(initial=1))
    width = next(size for size in row_sizes(longest) if size >= longest)
    pad = ((0, 0), (0, max(0, width - ids.shape[1])))
    return {f"{name}_ids": np.pad(ids, pad)[:, :width], f"{name}_mask": np.pad(mask, pad)[:, :width]}


def _padded(documents: DocumentVectors, rows: np.ndarray, dim: int) -> np.ndarray:
    """Vectors of the documents of these rows; zeros for the rows -1."""
    vectors = np.zeros((len(rows), dim), np.float32)
    vectors[rows >= 0] = documents(rows[rows >= 0])
    return vectors
