"""When results are fetched: never before the next batch was started. Counted, not timed."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.base import prefetch
from pbr_jax.base.prefetch import fetched
from pbr_jax.config import Optimizer, Training
from pbr_jax.train import loop, metrics, steps
from pbr_jax.train.batches import Rows


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What happened, in order: ("start", i) by the test, ("fetch", i) here, for arrays that hold i."""
    seen: list[tuple[str, int]] = []
    fetch = jax.device_get

    def watched(arrays: Any) -> Any:
        values = fetch(arrays)
        seen.append(("fetch", int(np.ravel(jax.tree.leaves(values)[0])[0])))
        return values

    monkeypatch.setattr(prefetch.jax, "device_get", watched)
    return seen


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_batch_is_fetched_after_those_behind_it_were_started(events, count, ahead):
    def started():
        for i in range(count):
            events.append(("start", i))
            yield f"batch {i}", (jnp.full(3, i), jnp.int32(-i))

    found = list(fetched(started(), ahead))
    assert [known for known, _ in found] == [f"batch {i}" for i in range(count)]
    for i, (_, (values, other)) in enumerate(found):
        assert np.array_equal(values, [i] * 3)
        assert other == -i
    for i in range(count):
        before = events[: events.index(("fetch", i))]
        assert sum(what == "start" for what, _ in before) == min(i + 1 + ahead, count)


def test_an_error_in_a_batch_comes_when_it_is_started():
    def started():
        yield 0, jnp.zeros(1)
        raise ValueError("no such batch")

    with pytest.raises(ValueError, match="no such batch"):
        list(fetched(started()))


def test_a_step_of_training_is_fetched_after_the_next_was_started(monkeypatch, tmp_path: Path):
    """Losses are read three at a time; the last one only where the parameters are evaluated."""
    happened: list[tuple[str, int]] = []
    compiled, fetch = steps.compiled, jax.device_get

    def watched(*arguments: Any, **options: Any) -> Any:
        step, count = compiled(*arguments, **options), iter(range(1, 100))

        def run(*arguments: Any) -> Any:
            happened.append(("start", next(count)))
            return step(*arguments)

        return run

    def get(pending: Any) -> Any:
        happened.extend(("fetch", step) for step, _ in pending)
        return fetch(pending)

    monkeypatch.setattr(loop.steps, "compiled", watched)
    monkeypatch.setattr(metrics.jax, "device_get", get)
    monkeypatch.setattr(metrics, "_TOGETHER", 3)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return jnp.square(batch["x"] - params["w"]).mean()

    def batch(rows: Rows) -> dict[str, np.ndarray]:
        return {"x": rows.indices.astype(np.float32), "where": rows.where}

    task = loop.TrainingTask(lambda: {"w": jnp.zeros(())}, loss, 40, batch)
    options = Training(epochs=1, batch_size=4, devices=1, optimizer=Optimizer(learning_rate=0.1))
    fitted = loop.fit(task, options, tmp_path, seed=0)
    assert [line["step"] for line in fitted.metrics if "loss" in line] == list(range(1, 11))
    for step in range(1, 10):
        assert happened.index(("fetch", step)) > happened.index(("start", step + 1))
