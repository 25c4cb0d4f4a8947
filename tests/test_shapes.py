"""The checks of shapes that tests install: a wrong shape is an error wherever shapes are annotated."""

import sys

import jax.numpy as jnp
import pytest
from shaped import SHAPED

from pbr_jax.losses import info_nce


def test_modules_that_annotate_shapes_are_found():
    assert {"pbr_jax.losses.contrastive", "pbr_jax.models.bert", "pbr_jax.index.exact"} <= set(SHAPED)
    assert "pbr_jax.experiment.plan" not in SHAPED


def test_a_wrong_shape_and_a_wrong_type_are_errors():
    assert "pbr_jax.losses.contrastive" in sys.modules
    queries, documents = jnp.ones((2, 3)), jnp.ones((4, 5))
    with pytest.raises(Exception, match="Type-check error"):
        info_nce(queries, documents, temperature=0.1)
    with pytest.raises(Exception, match="Type-check error"):
        info_nce(queries, jnp.ones((2, 3)), temperature="low")  # pyright: ignore[reportArgumentType]
