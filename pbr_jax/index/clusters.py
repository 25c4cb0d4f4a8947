"""Groups of documents that lie near each other: spherical k-means."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float


def k_means(
    vectors: Float[Array, "n d"], where: Bool[Array, " n"], *, k: int, iterations: int = 20
) -> Float[Array, "k d"]:
    """Unit centres of `k` groups by cosine (Dhillon and Modha, "Concept Decompositions", 2001).

    Nothing is random: the first centre is the vector nearest to the mean, every further one the vector that
    is farthest from those before (Gonzalez 1985). A group that loses all its vectors keeps its centre, so
    where there are fewer different vectors than groups, centres stand twice.

    Args:
      where: False on rows that count for nothing. With none left the centres are 0.
    """
    units = _unit(vectors) * where[:, None]
    centres = lax.fori_loop(1, k, partial(_farthest, units, where), _first(units, where, k))

    def move(_: Array, centres: Array) -> Array:
        chosen = jax.nn.one_hot(_products(units, centres).argmax(1), k) * where[:, None]
        sums = _products(chosen.T, units.T)
        kept = jnp.linalg.norm(sums, axis=1, keepdims=True) > 1e-6
        return jnp.where(kept, _unit(sums), centres)

    return lax.fori_loop(0, iterations, move, centres)


def nearest_centre(
    documents: Float[Array, "n d"], where: Bool[Array, " n"], query: Float[Array, " d"], *, k: int
) -> Float[Array, " d"]:
    """The centre, of `k` groups of documents, that has the highest cosine with the query."""
    centres = k_means(documents, where, k=k)
    return centres[_products(centres, query[None])[:, 0].argmax()]


def _products(a: Float[Array, "n d"], b: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return jnp.einsum("nd,md->nm", a, b, precision=lax.Precision.HIGHEST)


def _unit(vectors: Float[Array, "n d"]) -> Float[Array, "n d"]:
    lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / jnp.where(lengths > 0, lengths, 1)


def _first(units: Float[Array, "n d"], where: Bool[Array, " n"], k: int) -> Float[Array, "k d"]:
    nearest = jnp.where(where, _products(units, units.sum(0)[None])[:, 0], -jnp.inf).argmax()
    return jnp.zeros((k, units.shape[1]), units.dtype).at[0].set(units[nearest])


def _farthest(
    units: Float[Array, "n d"], where: Bool[Array, " n"], i: Array, centres: Float[Array, "k d"]
) -> Float[Array, "k d"]:
    known = jnp.where(jnp.arange(len(centres)) < i, _products(units, centres), -jnp.inf)
    return centres.at[i].set(units[jnp.where(where, known.max(1), jnp.inf).argmin()])
