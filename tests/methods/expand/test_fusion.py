"""Fusion against the equations written out for one query."""

import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.methods.expand.pbr import fuse, similarity


def parts(seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(4, 3, 7)).astype(np.float32))


def fused(*arrays: np.ndarray, weighted: bool = True) -> np.ndarray:
    return np.asarray(fuse(*map(jnp.asarray, arrays), weighted=weighted))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))


def test_without_weights_it_is_the_sum():
    np.testing.assert_allclose(fused(*parts(), weighted=False), sum(parts()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("missing", [(), (1,), (2,), (3,), (2, 3), (1, 2, 3)])
def test_the_fused_vector_is_equation_14_without_the_missing_parts(missing: tuple[int, ...]):
    arrays = [np.zeros_like(a) if i in missing else a for i, a in enumerate(parts())]
    q, c, f, r = arrays
    w1 = np.array([[1 + cosine((a + b) / 2, d) if d.any() else 1] for a, b, d in zip(q, c, f)])
    w2 = np.array([[1 + cosine((a + b) / 2, d) if d.any() else 1] for a, b, d in zip(q, c, r)])
    np.testing.assert_allclose(fused(*arrays), q + c + w1 * f + w2 * r, rtol=1e-5, atol=1e-6)


def test_a_part_along_the_centre_counts_double_and_one_against_it_not_at_all():
    q, c = np.array([[2.0, 0]], np.float32), np.array([[0, 2.0]], np.float32)
    along, against = np.array([[3.0, 3]], np.float32), np.array([[-1.0, -1]], np.float32)
    np.testing.assert_allclose(fused(q, c, along, against), [[8.0, 8.0]], atol=1e-5)
    assert float(similarity(jnp.asarray(q), jnp.asarray(q * 7))[0]) == pytest.approx(1, abs=1e-6)
