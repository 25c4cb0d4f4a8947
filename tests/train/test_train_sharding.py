"""How a batch is divided over devices, and into parts that are computed one after another."""

import jax
import pytest

from pbr_jax.base import compilation
from pbr_jax.base.types import UserError
from pbr_jax.config import Config
from pbr_jax.methods import retrieve, select
from pbr_jax.train import sharding, steps


@pytest.mark.parametrize(
    ("there", "batch_size", "wanted"),
    [
        (1, 8, (1, 4)), (1, 6, (1, 2)), (1, 5, (1, 1)), (1, 1, (1, 1)),
        (2, 8, (2, 2)), (2, 64, (2, 2)), (2, 6, (2, 1)), (2, 5, (1, 1)),
        (8, 8, (8, 1)), (6, 8, (4, 1)), (16, 8, (8, 1)), (17, 8, (1, 4)), (8, 3, (1, 1)),
    ],
)  # fmt: skip
def test_one_cpu_has_a_lane_for_each_core_and_parts(monkeypatch, there, batch_size, wanted):
    monkeypatch.setattr(compilation, "count", lambda: there)
    assert steps.division(batch_size, None, sharding.data_mesh(1), few=True) == wanted


def test_what_trains_all_parameters_has_parts_alone(monkeypatch):
    monkeypatch.setattr(compilation, "count", lambda: 2)
    assert steps.division(8, None, sharding.data_mesh(1)) == (1, 4)


def test_what_the_config_says_is_done_on_any_number_of_cores(monkeypatch):
    monkeypatch.setattr(compilation, "count", lambda: 2)
    assert steps.division(8, 4, sharding.data_mesh(1), few=True) == (1, 4)
    assert steps.division(8, 1, sharding.data_mesh(1), few=True) == (1, 1)


def test_several_devices_compute_their_shares_at_once():
    assert steps.division(16, None, sharding.data_mesh(8)) == (1, 1)


@pytest.mark.parametrize(("batch_size", "accumulate", "devices"), [(8, 3, 1), (8, 2, 8), (12, None, 8)])
def test_a_batch_that_does_not_divide_is_refused(batch_size, accumulate, devices):
    with pytest.raises(UserError, match=rf"batch_size is {batch_size}, which {devices} devices"):
        steps.division(batch_size, accumulate, sharding.data_mesh(devices))


def test_more_devices_than_there_are_is_refused():
    count = len(jax.devices())
    with pytest.raises(UserError, match=f"{count + 1} devices are wanted and there are {count}"):
        sharding.data_mesh(count + 1)


def test_only_losses_of_single_questions_are_computed_in_parts_by_default():
    config = Config()
    assert retrieve.Tuned().training.accumulate is select.Tuned().training.accumulate is None
    assert config.user_encoder.training.accumulate == 1  # its negatives are the rest of the batch
