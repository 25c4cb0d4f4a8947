"""Compiled programs are given back before the system refuses more memory maps."""

import sys

import jax
import jax.numpy as jnp
import pytest

from pbr_jax.stages import programs


@pytest.mark.skipif(sys.platform != "linux", reason="memory maps are counted on Linux alone")
def test_programs_are_released_once_they_take_too_many_maps():
    double = jax.jit(lambda x: (x * 2).sort().sum())
    for size in range(1, 6):
        double(jnp.ones(size))
    before = programs.maps()
    assert before > 0
    assert not programs.release(share=1.0)
    assert programs.maps() >= before
    assert programs.release(share=0.0)
    assert programs.maps() < before
    assert double(jnp.ones(3)) == 6  # compiled anew


def test_nothing_is_released_where_the_system_does_not_tell(monkeypatch, tmp_path):
    for name in ("_MAPS", "_MOST"):
        monkeypatch.setattr(programs, name, tmp_path / "absent")
    assert programs.maps() == 0
    assert not programs.release(share=0.0)
