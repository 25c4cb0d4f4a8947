"""The resources of a small run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import HISTORIES, Bags, example, vector

from pbr_jax.data.tasks import TASKS
from pbr_jax.index.store import Store, build
from pbr_jax.pipeline.pipeline import Resources
from pbr_jax.types import Example


@pytest.fixture
def examples() -> list[Example]:
    return [example(user) for user in HISTORIES]


@pytest.fixture
def world(tmp_path: Path, examples: list[Example]) -> Callable[..., Resources]:
    """The resources of a run, with this language model; without vectors where `dense` is False."""
    build(tmp_path / "store.sqlite", examples)
    store = Store(tmp_path / "store.sqlite")
    embeddings = np.stack([vector(text) for text in store.texts()])

    def made(llm: Any = None, dense: bool = True) -> Resources:
        return Resources(
            TASKS["lamp_7"], store, Bags() if dense else None, embeddings if dense else None, llm
        )

    return made
