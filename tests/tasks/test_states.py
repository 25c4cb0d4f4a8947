"""States as text: written once, read from whatever a model makes of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.tasks import released
from pbr_jax.tasks.states import Slot, first_values, parsed, read_reference, reference_text, written
from pbr_jax.text.answers import parse_answer

NAMES = st.text(min_size=1, max_size=9)
STATES = st.dictionaries(
    NAMES, st.dictionaries(NAMES, st.text(min_size=1, max_size=9), max_size=3), max_size=3
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"A_1": {"time": "8 pm", "seats": 2, "open": true}}',
         {"A_1": {"time": "8 pm", "seats": "2", "open": "True"}}),
        ('Sure!\n```json\n{"A_1": {"time": ["8 pm", "eight"]}}\n```', {"A_1": {"time": "8 pm"}}),
        ('{"time": "8 pm", "A_1": {"seats": 2.50}}', {"": {"time": "8 pm"}, "A_1": {"seats": "2.50"}}),
        ('{"A_1": {"time": null, "city": "None", "area": "", "tag": [], "x": {"y": 1}, "n": NaN}}', {}),
        ("{}", {}),
        ('{"A_1": {"time": "8 pm", "city": "Ro', {"": {"time": "8 pm"}}),
        ("{'A_1': {'time': '8 pm', 'seats': 2}}", {"": {"time": "8 pm", "seats": "2"}}),
        ("time = 8 pm\n- seats: 2,\n* city: none\nanything else", {"": {"time": "8 pm", "seats": "2"}}),
        ("[A_1]\ntime = \"8 pm\"\nB_2.seats: 2", {"A_1": {"time": "8 pm"}, "B_2": {"seats": "2"}}),
        ("time: none", {}),
        ("I cannot tell.", None),
        ("", None),
        ("{", None),
        ("[1, 2]", None),
        ("A long sentence about nothing in particular, of more than sixty letters before: yes", None),
    ],
)  # fmt: skip
def test_answers_are_read(text: str, wanted: object) -> None:
    assert parsed(text) == wanted
    answer = parse_answer(released("sgd").answers, text)
    assert answer == (text.strip() if wanted is None else written(parsed(text) or {}))


@given(STATES)
def test_what_is_written_is_read_again(state: dict[str, dict[str, str]]) -> None:
    found = parsed(written(state))
    assert found is not None
    assert parsed(written(found)) == found


@given(st.text() | st.text(alphabet="{}[]\"':=,.ab\\ \n"))
def test_no_answer_is_a_fault(text: str) -> None:
    found = parsed(text)
    assert found is None or json.loads(written(found)) is not None
    written(found or {}).encode()


def test_long_answers_take_no_time() -> None:
    for text in ("{" * 10**6, '{"a": "' * 10**5, "'" * 10**6, "a " * 10**6, "{" + "9" * 10**6 + ":" * 99):
        parsed(text)
    assert parsed('{"a": "\\ud800"}') == {"": {"a": "?"}}


def test_references() -> None:
    reference = [{"A": {"time": Slot("similar", ("8 pm", "eight")), "x": Slot("any")}}, {"B": {}}]
    assert read_reference(reference_text(reference)) == reference
    assert first_values(reference) == {"A": {"time": "8 pm"}, "B": {}}
    for text in ("", "{}", "[1]", '[{"A": {"x": []}}]', '[{"A": 1}]'):
        with pytest.raises(ValueError):
            read_reference(text)
