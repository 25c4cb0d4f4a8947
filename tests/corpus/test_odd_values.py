"""A `Document` or an `Example` with an odd value in any field is taken, or refused in one line."""

import dataclasses
import math
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.arguments import check_documents, check_examples
from pbr_jax.corpus.store import Store, build
from pbr_jax.options import Corpus

DOCUMENT = Document("d", "ann", "A text. And more.", {"title": "A title"}, 1.0, 2.0)
EXAMPLE = Example(
    "e", "ann", "query", "input", "target", (DOCUMENT,), 3.0, (("d",),), options=("target", "x")
)
OTHER = Example("f", "bob", "query", "input", "A title", (Document("g", "bob", "Another text."),), 3.0)

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=3), st.complex_numbers(),
    st.text(max_size=3), st.sampled_from(["", " ", "\ud800", "2020", "\0", "x" * 10_000]),
    st.sampled_from([400, 5000]).map(lambda digits: 10**digits),
    st.sampled_from([-(10**400), math.inf, -math.inf, math.nan, Fraction(1, 3), object()]),
    st.sampled_from([np.float32(1), np.int64(-1), np.float64("nan"), np.bool_(True), np.array([1, 2]), {1}]),
    st.sampled_from([DOCUMENT, EXAMPLE, Document, len, dataclasses.replace(DOCUMENT, fields={"a": 1})]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=2), max_leaves=4,
)  # fmt: skip


def names(owner: Any) -> list[str]:
    return [item.name for item in dataclasses.fields(owner)]


@pytest.fixture(scope="module", params=["none", "turns"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A living store, in which documents are whole or cut."""
    folder: Path = tmp_path_factory.mktemp("store")
    corpus = None if request.param == "none" else Corpus(chunk="turns")
    build(folder / "built.sqlite", [EXAMPLE, OTHER], "title", corpus=corpus)
    return Store(folder / "built.sqlite").copy_to(folder / "living.sqlite")


@pytest.mark.parametrize("name", names(Document))
@settings(max_examples=60, deadline=None)
@given(value=VALUES)
def test_a_document_is_added_or_refused(store: Store, name: str, value: Any) -> None:
    document, rows = dataclasses.replace(DOCUMENT, **{name: value}), None
    with suppress(UserError):
        rows = store.append(check_documents([document], "ann"))
    if rows is None:
        return
    (added,) = store.documents(rows[:1])
    assert (added.user_id, added.shared) == ("ann", False)
    assert store.times[rows[0]] <= math.inf or document.time is None


@pytest.mark.parametrize("name", names(Example))
@settings(max_examples=60, deadline=None)
@given(value=VALUES)
def test_an_example_is_asked_or_refused(store: Store, name: str, value: Any) -> None:
    example = dataclasses.replace(EXAMPLE, **{name: value})
    with suppress(UserError):
        (checked,) = check_examples([example])
        for user in ("ann", "bob", ""):
            assert len(store.visible(checked, user)) <= store.rows


@pytest.mark.parametrize(
    "values",
    [{"time": "2020"}, {"until": "x"}, {"until": math.nan}, {"fields": None}, {"fields": ["a"]}, {"turns": 5},
     {"part_of": 3}, {"span": None}, {"span": (1,)}, {"time": True}, {"time": 10**400}, {"turns": (1, -1)},
     {"shared": 1}],
)  # fmt: skip
def test_these_documents_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"{next(iter(values))} of documents\[0\]"):
        check_documents([dataclasses.replace(DOCUMENT, **values)], "ann")


@pytest.mark.parametrize(
    "values",
    [{"query": None}, {"id": None}, {"training": None}, {"time": "x"}, {"time": math.nan}, {"relevant": "ab"},
     {"input": "\ud800"}, {"target": 5}, {"options": {"a": 1}}, {"profile": (None,)}],
)  # fmt: skip
def test_these_examples_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"{next(iter(values))} of examples\[0\]"):
        check_examples([dataclasses.replace(EXAMPLE, **values)])


def test_times_of_numpy_and_the_time_after_everything_are_taken() -> None:
    for time in (np.float32(1), np.int64(5), 7, math.inf, None):
        assert check_examples([dataclasses.replace(EXAMPLE, time=time)])
        assert check_documents([dataclasses.replace(DOCUMENT, time=time)], "ann")
