"""In which format a training computes, by the platform."""

import jax
import jax.numpy as jnp
import pytest

from pbr_jax.options import Training
from pbr_jax.train.steps import number_format


@pytest.mark.parametrize(
    ("platform", "dtype", "wanted"),
    [
        ("cpu", "auto", jnp.float32),
        ("tpu", "auto", jnp.bfloat16),
        ("gpu", "auto", jnp.bfloat16),
        ("tpu", "float32", jnp.float32),
        ("cpu", "bfloat16", jnp.bfloat16),
    ],
)
def test_accelerators_train_in_bfloat16_unless_float32_is_asked(platform, dtype, wanted, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert number_format(Training(dtype=dtype)) == wanted


def test_a_cpu_trains_as_before():
    assert number_format(Training()) == number_format(Training(dtype="float32"))
