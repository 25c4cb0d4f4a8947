"""Matrices that are refused, and unit vectors."""

import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.index.base import check_matrix, unit


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_matrix_with_nan_names_the_row(bad):
    vectors = np.zeros((70_000, 2), np.float32)
    vectors[65_540, 1] = bad
    with pytest.raises(UserError, match="row 65540 of vectors holds NaN or infinity"):
        check_matrix(vectors)
    with pytest.raises(UserError, match="width 2, but the index holds vectors of width 3"):
        check_matrix(vectors, 3)


def test_unit_vectors_and_zeros():
    vectors = unit(np.array([[3, 4], [0, 0], [-1e-3, 0]], np.float32))
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)
