"""Spherical k-means against brute force over all groupings, and the odd sizes."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.index.clusters import k_means


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def drawn(n: int, d: int = 4, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(n, d))).astype(np.float32)


def centres(vectors: np.ndarray, k: int, where: np.ndarray | None = None, **options: int) -> np.ndarray:
    where = np.ones(len(vectors), bool) if where is None else where
    return np.asarray(k_means(jnp.asarray(vectors), jnp.asarray(where), k=k, **options))


def quality(vectors: np.ndarray, found: np.ndarray) -> float:
    return float((vectors @ found.T).max(1).sum())


def best(vectors: np.ndarray, k: int) -> float:
    """Of all groupings: a group of unit vectors has the length of its sum as its cosines' sum."""
    groupings = itertools.product(range(k), repeat=len(vectors))
    return max(
        sum(float(np.linalg.norm(vectors[np.array(groups) == i].sum(0))) for i in range(k))
        for groups in groupings
    )


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_lie_apart_are_those_of_brute_force(seed: int):
    topics = np.eye(4)[:3]
    noise = np.random.default_rng(seed).normal(size=(9, 4))
    vectors = unit(np.repeat(topics, 3, axis=0) + 0.15 * noise).astype(np.float32)
    assert quality(vectors, centres(vectors, 3)) == pytest.approx(best(vectors, 3), abs=1e-4)


def test_iterations_never_make_it_worse_and_end_where_centres_are_means():
    vectors = drawn(60)
    values = [quality(vectors, centres(vectors, 5, iterations=i)) for i in (0, 1, 2, 5, 40)]
    assert values == sorted(values)
    assert values[-1] > values[0] + 1
    found = centres(vectors, 5, iterations=40)
    groups = (vectors @ found.T).argmax(1)
    means = unit(np.stack([vectors[groups == i].sum(0) for i in range(5)]))
    np.testing.assert_allclose(found, means, atol=1e-5)


def test_what_is_left_out_counts_for_nothing():
    vectors = drawn(12)
    where = np.arange(12) % 3 > 0
    np.testing.assert_allclose(centres(vectors, 3, where), centres(vectors[where], 3), atol=1e-6)
    assert not centres(vectors, 3, np.zeros(12, bool)).any()


def test_more_groups_than_vectors_and_vectors_that_are_alike():
    one, same = drawn(1), np.repeat(drawn(1), 5, axis=0)
    for vectors in (one, same):
        np.testing.assert_allclose(centres(vectors, 3), np.repeat(one, 3, axis=0), atol=1e-6)
    assert not centres(np.zeros((4, 3), np.float32), 2).any()
