"""Trained parameters on disk: a kill while the checkpoints are taken away repeats nothing."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax.methods import retrieve, select
from pbr_jax.methods.select import distilled
from pbr_jax.options import UserEncoder
from pbr_jax.stages import users
from pbr_jax.stages.rankings import Questions
from pbr_jax.stages.trained import load_saved, save_fitted
from pbr_jax.train.loop import Fitted

TRAINED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "retriever": (distilled._train, (retrieve.Tuned(), Questions(), 0, 0.0, "retriever")),
    "reranker": (distilled._train, (select.Tuned(), Questions(), 0, 0.0, "reranker")),
    "user encoder": (users._train, (UserEncoder(), 0)),
}


@pytest.mark.parametrize("name", TRAINED)
def test_what_was_kept_is_not_trained_again(name: str, tmp_path: Path):
    """Its checkpoints are half gone, as a kill leaves them: whoever looked into them would stumble."""
    train, options = TRAINED[name]
    save_fitted(Fitted({"w": np.ones(2, np.float32)}, 3, [], {}), tmp_path, name)
    (tmp_path / "checkpoints" / "15").mkdir(parents=True)
    train = inspect.unwrap(train)  # nothing that it needs is looked at, so its type does not matter
    needs = [p.name for p in inspect.signature(train).parameters.values() if p.kind is p.KEYWORD_ONLY]
    train(tmp_path, *options, **dict.fromkeys(needs))
    np.testing.assert_array_equal(load_saved(tmp_path)["w"], 1)
    assert not (tmp_path / "checkpoints").exists()
