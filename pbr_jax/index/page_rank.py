"""The anchor of a user's history: PageRank over the user's own documents, for many users at once.

P-Anchor of PBR (Zhang et al., "Personalize Before Retrieve: LLM-based Personalized Query Expansion for
User-Centric Retrieval", 2025, section 3.3). The documents of a user are the nodes of a graph, with edges to
their nearest neighbours. PageRank gives the weights of the nodes, and the weighted sum of their vectors is
the user's anchor.

Functions are defined for one user and mapped over users. Users with histories of similar length are computed
together, padded to a common width.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from pbr_jax.index.base import Matrix
from pbr_jax.index.clusters import nearest_centre
from pbr_jax.index.top_k import top_k

_BLOCK = 512  # rows of a history whose similarities are in memory together
_DOCUMENTS = {"cpu": 1024}  # computed together; elsewhere 16,384. On CPU all stays in the caches
_LANES = 4  # batches under way: some are gathered while others are computed


class Walk(NamedTuple):
    """The parameters of the graph and of the random walk on it."""

    theta: float = 0.75  # least cosine of an edge
    k: int = 10  # edges from a document, the one to itself included
    damping: float = 0.85  # share of steps along edges, the rest are restarts; 1: never restarts
    iterations: int = 100  # at most
    tolerance: float = 1e-6  # stops where the step before it moved less (L2)
    temperature: float = 0.1  # of the restarts that prefer documents near a query


class Groups(NamedTuple):
    """Centres of clusters of documents, as an alternative to a random walk."""

    k: int = 8


class Graph(NamedTuple):
    """Edges of each document: targets, and probabilities, which add up to 1, or to 0 without edges."""

    columns: Int[Array, "n k"]
    weights: Float[Array, "n k"]


def neighbour_graph(
    documents: Float[Array, "n d"], where: Bool[Array, " n"], *, theta: float, k: int
) -> Graph:
    """Links each document to its `k` most similar ones with cosine of at least `theta` (PBR, Eq. 7 and 8).

    A document is its own first neighbour, as in the released code. The weight of an edge is the cosine, and
    rows are normalised. Masked rows (`where` False) and zero vectors have no edges.
    """
    norms = jnp.linalg.norm(documents, axis=-1, keepdims=True)
    units = documents / jnp.where(norms > 0, norms, 1)

    def nearest(unit: Float[Array, " d"]) -> tuple[Float[Array, " k"], Int[Array, " k"]]:
        similarity = jnp.einsum("nd,d->n", units, unit, precision=lax.Precision.HIGHEST)
        return top_k(jnp.where(where & (similarity >= theta), similarity, -jnp.inf), k)

    similarity, columns = lax.map(nearest, units, batch_size=_BLOCK)
    weights = jnp.where((columns >= 0) & where[:, None] & (norms > 0), similarity, 0)
    total = weights.sum(-1, keepdims=True)
    return Graph(columns, weights / jnp.where(total > 0, total, 1))


def page_rank(
    graph: Graph, restart: Float[Array, " n"], *, damping: float, iterations: int, tolerance: float
) -> Float[Array, " n"]:
    """The stationary distribution of a random walk with restart probability `1 - damping` (PBR, Eq. 9).

    Power iteration starts from `restart`, a distribution over the documents. From a document without edges,
    the walk also continues from `restart`. The result is the vector before the first step that changes it by
    less than `tolerance`, as in the released code.
    """
    stuck = (graph.weights.sum(-1) == 0).astype(restart.dtype)

    def follow(ranks: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(ranks).at[graph.columns].add(graph.weights * ranks[:, None], mode="drop")

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        ranks, _, count = state
        moved = damping * (follow(ranks) + (ranks * stuck).sum() * restart) + (1 - damping) * restart
        settled = jnp.linalg.norm(moved - ranks) < tolerance
        return jnp.where(settled, ranks, moved), settled, count + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return ~state[1] & (state[2] < iterations)

    start = (restart, jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    return lax.while_loop(unfinished, step, start)[0]


def anchor(
    documents: Float[Array, "n d"],
    where: Bool[Array, " n"],
    graph: Graph,
    query: Float[Array, " d"] | None = None,
    *,
    walk: Walk,
) -> Float[Array, " d"]:
    """The sum of one user's document vectors, weighted by PageRank (PBR, Eq. 10); zeros without documents.

    With a query, restarts favour documents near it (topic-sensitive PageRank, Haveliwala 2002): restart
    probabilities are the softmax of cosine / temperature. `where` is False for padding.
    """
    if query is None:
        restart = where / jnp.maximum(where.sum(), 1)
    else:
        lengths = jnp.linalg.norm(documents, axis=-1) * jnp.linalg.norm(query)
        products = jnp.einsum("nd,d->n", documents, query, precision=lax.Precision.HIGHEST)
        logits = products / jnp.where(lengths > 0, lengths, 1) / walk.temperature
        restart = jnp.where(where, jax.nn.softmax(logits, where=where), 0)
    ranks = page_rank(
        graph, restart, damping=walk.damping, iterations=walk.iterations, tolerance=walk.tolerance
    )
    return jnp.einsum("n,nd->d", ranks, documents, precision=lax.Precision.HIGHEST)


# -- many users ----------------------------------------------------------------------------------


def anchors(
    vectors: Matrix,
    histories: Sequence[Int[np.ndarray, " _"]],
    how: Walk | Groups,
    queries: Float[np.ndarray, "u d"] | None = None,
) -> Float[np.ndarray, "u d"]:
    """The `anchor` of each history (a list of rows of `vectors`). `queries` has one query per history.

    With `Groups`, the anchor is the `nearest_centre` to the query of the history.
    """
    found = np.zeros((len(histories), vectors.shape[1]), np.float32)

    def compute(members: np.ndarray) -> np.ndarray:
        documents, where = _padded(vectors, [histories[member] for member in members])
        asked = None
        if queries is not None:
            asked = np.zeros((len(documents), vectors.shape[1]), np.float32)
            asked[: len(members)] = queries[members]
        return np.asarray(_many(how)(documents, where, asked))[: len(members)]

    batches = list(_batches([len(history) for history in histories]))
    with ThreadPoolExecutor(_LANES) as pool:
        for members, of_members in zip(batches, pool.map(compute, batches), strict=True):
            found[members] = of_members
    return found


@lru_cache(maxsize=64)
def _many(how: Walk | Groups) -> Any:
    """The function of [u n d] documents, [u n] where and [u d] queries that finds the anchors [u d]."""
    if isinstance(how, Groups):
        return jax.jit(jax.vmap(partial(nearest_centre, k=how.k)))

    def of_one(documents: Array, where: Array, query: Array | None) -> Array:
        graph = neighbour_graph(documents, where, theta=how.theta, k=how.k)
        return anchor(documents, where, graph, query, walk=how)

    return jax.jit(jax.vmap(of_one))


def _batches(sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """Places of users that are computed together, the longest histories first.

    A batch is as wide as its longest history, and all but the last are full. Users without documents are
    in none.
    """
    order = np.argsort(-np.asarray(sizes), kind="stable")[: np.count_nonzero(sizes)]
    while len(order):
        height = _height(_width(sizes[order[0]]))
        yield order[:height]
        order = order[height:]


def _width(size: int) -> int:
    """The least of 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ... that holds a history; few, so few programs."""
    if size <= 8:
        return 8 if size else 0
    step = 1 << ((size - 1).bit_length() - 3)  # an eighth of the next power of two
    return -(-size // step) * step


def _height(width: int) -> int:
    """How many users of this width are computed together."""
    return max(1, _DOCUMENTS.get(jax.default_backend(), 1 << 14) // width)


def _padded(
    vectors: Matrix, histories: Sequence[np.ndarray]
) -> tuple[Float[np.ndarray, "u n d"], Bool[np.ndarray, "u n"]]:
    """Documents of users in one array, filled up with users of none, so that a width has one program."""
    width = _width(max(map(len, histories)))
    height = _height(width)
    documents = np.zeros((height, width, vectors.shape[1]), np.float32)
    where = np.zeros((height, width), bool)
    for place, rows in enumerate(histories):
        where[place, : len(rows)] = True
        documents[place, : len(rows)] = vectors[rows]
    return documents, where


class Anchors:
    """The anchors of histories, each computed once.

    A history is identified by its rows, so after a new document only this history is computed again. Rows may
    be added to `vectors` between calls, but must not change.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._known: dict[bytes, np.ndarray] = {}

    def __len__(self) -> int:
        """How many histories were computed."""
        return len(self._known)

    def __call__(
        self, vectors: Matrix, histories: Sequence[Int[np.ndarray, " _"]]
    ) -> Float[np.ndarray, "u d"]:
        """Returns the anchors [u d] of these histories."""
        keys = [np.asarray(history, np.int64).tobytes() for history in histories]
        new = {key: history for key, history in zip(keys, histories) if key not in self._known}
        self._known |= zip(new, anchors(vectors, list(new.values()), self.walk))
        if not keys:
            return np.zeros((0, vectors.shape[1]), np.float32)
        return np.stack([self._known[key] for key in keys])
