"""Rows: what TFDS writes of an example and reads again is that example."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import Document, Example
from pbr_jax.data.rows import from_row, to_row
from pbr_jax.data.tfds_builders import features

FEATURES = features()
# Whatever UTF-8 can hold: zeros at the end, other scripts, combining marks, emoji, line ends.
TEXTS = st.one_of(
    st.sampled_from(["", "\0", "a\0", "é\u0301", "日本語", "🙂", "\r\n", " "]), st.text(max_size=8)
)
TIMES = st.none() | st.floats(allow_nan=False)
TURNS = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
DOCUMENTS = st.tuples(TEXTS, TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3), TIMES, TIMES, TURNS)
GROUPS = st.lists(st.lists(TEXTS, max_size=3).map(tuple), max_size=3).map(tuple)
EXAMPLES = st.tuples(
    TEXTS, TEXTS, TEXTS, TEXTS, st.none() | TEXTS, st.lists(DOCUMENTS, max_size=4).map(tuple),
    TIMES, GROUPS, TEXTS, st.booleans(), st.lists(TEXTS, max_size=3).map(tuple), TEXTS,
    st.lists(TEXTS, max_size=4).map(tuple),
)  # fmt: skip


def there_and_back(example: Example) -> Example:
    row: Any = FEATURES.deserialize_example_np(FEATURES.serialize_example(to_row(example)))
    return from_row(row)


@given(EXAMPLES)
def test_any_example_comes_back_equal(values: tuple[Any, ...]) -> None:
    id, user, query, input, target, profile, time, relevant, category, scored, others, unit, options = values
    documents = tuple(Document(*document, turns=turns) for *document, turns in profile)
    texts = (id, user, query, input, target)
    example = Example(*texts, documents, time, relevant, category, scored, others, unit=unit, options=options)
    assert there_and_back(example) == example


def plain(**values: Any) -> Example:
    texts: dict[str, Any] = {"id": "i", "user_id": "u", "query": "q", "input": "in", "target": "t"}
    return Example(**texts | values)


@pytest.mark.parametrize("target", [None, "", "None", "\0"])
def test_a_withheld_target_is_not_an_empty_one(target: str | None) -> None:
    assert there_and_back(plain(target=target)).target == target


@pytest.mark.parametrize("time", [0.0, -0.0, 0.1 + 0.2, 1e300, 5e-324, -1.5, 1684549260.123456, math.inf])
def test_times_come_back_to_the_last_bit(time: float) -> None:
    found = there_and_back(plain(time=time, profile=(Document("d", "u", "x", {}, time, time),)))
    assert found.time is not None
    assert found.time.hex() == time.hex()
    assert (found.profile[0].time, found.profile[0].until) == (time, time)


def test_fields_stay_with_their_documents_and_keep_their_order() -> None:
    many, none, one = {"b": "1", "a": "2", "": "3"}, {}, {"a": "4"}
    profile = tuple(Document(str(i), "u", "x", fields) for i, fields in enumerate((many, none, one)))
    found = there_and_back(plain(profile=profile))
    assert [list(document.fields.items()) for document in found.profile] == [
        [("b", "1"), ("a", "2"), ("", "3")], [], [("a", "4")],
    ]  # fmt: skip


def test_groups_keep_their_bounds() -> None:
    groups = (("a", "b"), (), ("c",), ())
    assert there_and_back(plain(relevant=groups)).relevant == groups
    assert there_and_back(plain(relevant=((),))).relevant == ((),)
    assert there_and_back(plain()).relevant == ()
