"""Training a small model: resumed equals uninterrupted, eight devices equal one, the best is returned."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.config import Optimizer, Training
from pbr_jax.train import loop
from pbr_jax.train.batches import Batches, Rows

GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(37, 4)).astype(np.float32)
TARGETS = INPUTS @ GENERATOR.normal(size=(4, 2)).astype(np.float32) + 0.1


def params():
    return {"layer": {"kernel": jnp.full((4, 2), 0.1), "bias": jnp.zeros(2)}}


def loss(params, batch, key):
    keep = jax.random.bernoulli(key, 0.9, batch["inputs"].shape)  # random on purpose
    layer = params["layer"]
    found = (batch["inputs"] * keep) @ layer["kernel"] + layer["bias"][None, :]
    errors = jnp.square(found - batch["targets"]).sum(axis=1)
    return jnp.where(batch["where"], errors, 0).sum() / batch["where"].sum()


def batch(rows: Rows):
    return {"inputs": INPUTS[rows.indices], "targets": TARGETS[rows.indices], "where": rows.where}


def evaluate(params):
    found = INPUTS @ params["layer"]["kernel"] + params["layer"]["bias"][None, :]
    return -float(jnp.square(found - TARGETS).mean())


def task(evaluate=evaluate, examples=37):
    return loop.TrainingTask(params, loss, examples, batch, evaluate)


def settings(**changes):
    base: dict = dict(
        epochs=6, batch_size=8, devices=1, optimizer=Optimizer(learning_rate=0.05, weight_decay=0.01)
    )
    return Training(**(base | changes))


def equal(one, two):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


def test_training_learns_and_returns_the_best(tmp_path):
    fitted = loop.fit(task(), settings(), tmp_path, seed=1)
    values = {line["step"]: line["selection"] for line in fitted.metrics if "selection" in line}
    assert list(values) == [0, 5, 10, 15, 20, 25, 30]
    assert max(values, key=values.__getitem__) == fitted.step
    assert evaluate(fitted.params) == pytest.approx(max(values.values()), rel=1e-5)
    assert max(values.values()) > values[0] / 5


def test_without_patience_every_step_is_trained(tmp_path):
    still = settings(optimizer=Optimizer(name="sgd", learning_rate=0.0), patience=None)
    fitted = loop.fit(task(), still, tmp_path, seed=1)
    assert fitted.metrics[-1]["step"] == 30
    assert fitted.step == 0


def test_a_finished_training_is_found_again(tmp_path):
    once = loop.fit(task(), settings(), tmp_path, seed=1)
    again = loop.fit(task(lambda params: pytest.fail("evaluated again")), settings(), tmp_path, seed=1)
    assert equal(once.params, again.params)
    assert once.metrics == again.metrics


GROUPS = np.split(GENERATOR.permutation(37), [8, 9, 15, 23, 31])  # sizes 8, 1, 6, 8, 8, 6


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("stop", [1, 8])
def test_an_interrupted_training_ends_the_same(tmp_path, stop, groups):
    """Interrupted after step `stop`, between two checkpoints or at one."""
    config = settings(
        checkpoint_every=3, optimizer=Optimizer(learning_rate=0.05, schedule="cosine", warmup=0.2)
    )
    whole = loop.fit(task()._replace(groups=groups), config, tmp_path / "whole", seed=1)
    calls = 0

    def until(rows):
        nonlocal calls
        calls += 1
        if calls > stop:
            raise KeyboardInterrupt
        return batch(rows)

    with pytest.raises(KeyboardInterrupt):
        loop.fit(task()._replace(groups=groups, batch=until), config, tmp_path / "cut", seed=1)
    resumed = loop.fit(task()._replace(groups=groups), config, tmp_path / "cut", seed=1)
    assert equal(whole.params, resumed.params)
    assert whole.metrics == resumed.metrics
    assert (tmp_path / "cut/metrics.jsonl").read_text() == (tmp_path / "whole/metrics.jsonl").read_text()


SCRIPT = """
import sys, time
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 8)
sys.path.insert(0, {tests!r})
import test_loop as t
def slow(rows):
    time.sleep(0.05)
    return t.batch(rows)
config = t.settings(checkpoint_every=3)
t.loop.fit(t.task()._replace(batch=slow), config, Path({folder!r}), seed=1)
"""


@pytest.mark.long
def test_kill_9_at_any_step_and_again_gives_the_same_bits(tmp_path):
    whole = loop.fit(task(), settings(checkpoint_every=3), tmp_path / "whole", seed=1)
    folder = tmp_path / "killed"
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder))
    delay = float(np.random.default_rng(time.time_ns()).uniform(0.05, 1.2))
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "JAX_PLATFORMS": "cpu"})
    try:
        while process.poll() is None and not (folder / "metrics.jsonl").is_file():
            time.sleep(0.05)
        time.sleep(delay)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the script ended by itself: it has to be slower"
    resumed = loop.fit(task(), settings(checkpoint_every=3), folder, seed=1)
    assert equal(whole.params, resumed.params), f"killed after {delay} s"
    assert whole.metrics == resumed.metrics


@pytest.mark.long
def test_eight_devices_equal_one_and_go_on_as_two(tmp_path):
    one = loop.fit(task(), settings(), tmp_path / "one", seed=1)
    eight = loop.fit(task(), settings(devices=8), tmp_path / "eight", seed=1)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    half = settings(devices=8, epochs=3)  # a constant learning rate: fewer epochs are the same beginning
    loop.fit(task(None), half, tmp_path / "moved", seed=1)
    moved = loop.fit(task(None), settings(devices=2), tmp_path / "moved", seed=1)
    straight = loop.fit(task(None), settings(), tmp_path / "straight", seed=1)
    assert len(jax.tree.leaves(moved.params)[0].sharding.device_set) == 2
    for a, b in zip(jax.tree.leaves(straight.params), jax.tree.leaves(moved.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_every_example_is_seen_once_an_epoch_and_orders_differ():
    batches = Batches(37, 8, seed=3)
    assert batches.steps == 5
    epochs = []
    for epoch in range(2):
        rows = [batches.rows(epoch * 5 + place) for place in range(5)]
        assert all(len(r.indices) == 8 for r in rows)
        seen = np.concatenate([r.indices[r.where] for r in rows])
        assert sorted(seen.tolist()) == list(range(37))
        epochs.append(seen.tolist())
    assert epochs[0] != epochs[1]
    few = Batches(3, 8, seed=0).rows(0)
    assert sorted(few.indices[few.where].tolist()) == [0, 1, 2]
    assert len(few.indices) == 8


def test_given_batches_stay_together_in_a_new_order_every_epoch(tmp_path):
    batches = Batches(37, 8, seed=3, groups=tuple(GROUPS))
    assert batches.steps == 6
    orders = []
    for epoch in range(3):
        rows = [batches.rows(epoch * 6 + place) for place in range(6)]
        assert all(len(r.indices) == 8 for r in rows)
        seen = [r.indices[r.where].tolist() for r in rows]
        assert sorted(seen) == sorted(group.tolist() for group in GROUPS)
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]
    one = loop.fit(task()._replace(groups=GROUPS), settings(), tmp_path / "one", seed=1)
    eight = loop.fit(task()._replace(groups=GROUPS), settings(devices=8), tmp_path / "eight", seed=1)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [2, None])
def test_given_batches_are_not_computed_in_parts(tmp_path, parts):
    with pytest.raises(UserError, match=f"accumulate is {parts or 'none'}, and the loss compares"):
        loop.fit(task()._replace(groups=GROUPS), settings(accumulate=parts), tmp_path, seed=1)
    with pytest.raises(UserError, match="a batch has 8 examples, want from 1 to 4"):
        loop.fit(task()._replace(groups=GROUPS), settings(batch_size=4), tmp_path, seed=1)


def test_bad_settings_are_told(tmp_path):
    with pytest.raises(UserError, match="batch_size is 8, which 3 devices and 1 accumulated"):
        loop.fit(task(), settings(devices=3), tmp_path, seed=1)
    with pytest.raises(UserError, match="9 devices are wanted and there are 8"):
        loop.fit(task(), settings(devices=9), tmp_path, seed=1)
    with pytest.raises(UserError, match="no example to train on"):
        loop.fit(task(examples=0), settings(), tmp_path, seed=1)


def test_a_selection_value_that_is_no_number_is_an_error_and_never_chosen(tmp_path):
    values = iter([-2.0, float("nan")])
    with pytest.raises(UserError, match=r"the selection value of step 5 is nan, want a finite number"):
        loop.fit(task(lambda params: next(values)), settings(), tmp_path, seed=1)


def test_a_gradient_that_is_not_finite_stops_a_training_whose_loss_is(tmp_path):
    def steep(params, batch, key):
        return loss(params, batch, key) + jnp.sqrt(jnp.square(params["layer"]["bias"]).sum())

    with pytest.raises(UserError, match=r"the gradient norm of step 1 is nan"):
        loop.fit(task(None)._replace(loss=steep), settings(epochs=1), tmp_path, seed=1)


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path):
    def broken(params, batch, key):
        return loss(params, batch, key) / 0.0

    with pytest.raises(UserError, match=r"the loss of step 1 is inf; lower the learning rate"):
        loop.fit(task()._replace(loss=broken), settings(), tmp_path, seed=1)
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["step"] == 0
