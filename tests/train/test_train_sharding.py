"""How a batch is divided over devices, and into parts that are computed one after another."""

import jax
import pytest

from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select
from pbr_jax.train import sharding
from pbr_jax.types import UserError


@pytest.mark.parametrize(("batch_size", "wanted"), [(8, 4), (4, 4), (6, 2), (5, 1), (1, 1), (64, 4)])
def test_one_cpu_computes_a_batch_in_up_to_four_parts(batch_size, wanted):
    assert sharding.parts(batch_size, None, sharding.data_mesh(1)) == wanted


def test_several_devices_compute_their_shares_at_once():
    assert sharding.parts(16, None, sharding.data_mesh(8)) == 1


@pytest.mark.parametrize(("batch_size", "accumulate", "devices"), [(8, 3, 1), (8, 2, 8), (12, None, 8)])
def test_a_batch_that_does_not_divide_is_refused(batch_size, accumulate, devices):
    with pytest.raises(UserError, match=rf"batch_size is {batch_size}, which {devices} devices"):
        sharding.parts(batch_size, accumulate, sharding.data_mesh(devices))


def test_more_devices_than_there_are_is_refused():
    count = len(jax.devices())
    with pytest.raises(UserError, match=f"{count + 1} devices are wanted and there are {count}"):
        sharding.data_mesh(count + 1)


def test_only_losses_of_single_questions_are_computed_in_parts_by_default():
    config = Config()
    assert retrieve.Tuned().training.accumulate is select.Tuned().training.accumulate is None
    assert config.user_encoder.training.accumulate == 1  # its negatives are the rest of the batch
