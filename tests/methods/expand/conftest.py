"""What expansions of a small run stand on."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import HISTORIES, Bags, World, example, vector

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.options import Expand
from pbr_jax.pipeline import ExpandSlot, Tally


@pytest.fixture
def examples() -> list[Example]:
    return [example(user) for user in HISTORIES]


@pytest.fixture
def world(tmp_path: Path, examples: list[Example]) -> Callable[..., World]:
    """A small run with this language model; without vectors where `dense` is False."""
    build(tmp_path / "store.sqlite", examples)
    store = Store(tmp_path / "store.sqlite")
    embeddings = np.stack([vector(text) for _, text in store.texts()])

    def made(llm: Any = None, dense: bool = True) -> World:
        return World(Tally(), store, Bags() if dense else None, embeddings if dense else None, llm)

    return made


@pytest.fixture
def slot() -> Callable[[Expand, World], ExpandSlot]:
    """The slot of a method in a small world, which gives it what it asks for."""

    def made(method: Expand, world: World) -> ExpandSlot:
        asked = inspect.signature(method.slot).parameters
        there = {name: value for name, value in world._asdict().items() if value is not None}
        return method.slot(world.tally, **{n: there[n] for n in asked if n in there and n != "tally"})

    return made
