"""Parameters in a file: what goes in comes out, and damage is said."""

import jax
import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.models.params_file import load_params, save_params
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer


def test_nested_parameters_come_back_bit_by_bit(tmp_path):
    model = user_transformer(UserTransformerConfig(width=8, max_documents=4))
    params = model.init(jax.random.key(0))
    save_params(params, tmp_path / "p")
    back = load_params(tmp_path / "p")
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert all(map(np.array_equal, jax.tree.leaves(back), jax.tree.leaves(params)))


def test_an_absent_and_a_damaged_file_are_one_line(tmp_path):
    (tmp_path / "damaged").write_bytes(b"nothing of the kind")
    for name in ("absent", "damaged"):
        with pytest.raises(UserError, match=f"{name} cannot be read as parameters .* run again"):
            load_params(tmp_path / name)
