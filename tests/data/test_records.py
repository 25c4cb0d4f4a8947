"""Faults name the place, values come back as the types that readers want."""

from pathlib import Path

import pytest

from pbr_jax.base.types import Document, UserError
from pbr_jax.data.records import Record, moment_after, profile, top_record

FILE = Path("folder/data.json")


def record(**values: object) -> Record:
    return top_record({"id": "q", **values}, FILE, 3)


def ignore(repair: str) -> None:
    pass


@pytest.mark.parametrize(
    ("value", "read", "found"),
    [
        ([1], "text", "found a list, wanted a string"),
        (None, "text", "found null, wanted a string"),
        (True, "text", "found a boolean, wanted a string"),
        (" ", "name", "found an empty string, wanted an id"),
        ("a\ud83d", "name", "found half of a surrogate pair in 'a\\ud83d', wanted an id of whole characters"),
        ({}, "items", "found an object, wanted a list"),
        ("x", "record", "found a string, wanted an object"),
        ("yesterday", "time", "found 'yesterday', wanted a date"),
        (15886877289230, "time", "found '15886877289230', wanted a date"),
        (1.7446744073709552e19, "name", "found 1.7446744073709552e+19, which has lost digits, wanted an id"),
    ],
)
def test_a_wrong_type_names_file_record_and_field(value: object, read: str, found: str) -> None:
    with pytest.raises(UserError) as error:
        getattr(record(key=value), read)("key")
    message = str(error.value)
    assert message.startswith(f"{FILE}: record 3 (id 'q'), field 'key': {found}")
    assert "\n" not in message


def test_a_missing_key_lists_the_keys_that_are_there() -> None:
    with pytest.raises(UserError, match=r"field 'text': found no such key \(keys: id, other\)"):
        record(other=1).text("text")


def test_faults_inside_a_record_give_the_whole_path() -> None:
    inner = record(profile=[{"text": "a"}, {"parts": [{"text": 1}, {"text": None}]}])
    with pytest.raises(UserError, match=r"field 'profile\[1\]\.parts\[1\]\.text'"):
        inner.records("profile")[1].records("parts")[1].text("text")
    with pytest.raises(UserError, match=r"field 'profile\[0\]': found a number, wanted an object"):
        record(profile=[1]).records("profile")


def test_a_record_that_is_no_object_is_named_by_its_position() -> None:
    with pytest.raises(UserError, match="record 7: found a list, wanted an object"):
        top_record([], FILE, 7)


def test_numbers_become_strings_and_half_a_surrogate_pair_a_question_mark() -> None:
    mixed = record(score=4, price=1.5, odd="a\ud83d", good="é😀", flag=True, nothing=None, parts=["x"])
    assert mixed.strings("id") == {"score": "4", "price": "1.5", "odd": "a?", "good": "é😀"}
    assert mixed.time("nothing") is None
    assert record(date="").time("date") is None
    assert record(date=1369526400).time("date") == 1369526400.0


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(7, "7"), (7.0, "7"), ("7", "7"), ("7.0", "7.0"), (1e3, "1000"), (-0.0, "0"), (7.5, "7.5"),
     ("nan", "nan"), (17446744073709551615, "17446744073709551615"), (10**40, str(10**40)),
     (2.0**53 - 1, str(2**53 - 1))],
)  # fmt: skip
def test_an_id_is_its_text_or_its_digits(value: object, wanted: str) -> None:
    assert record(key=value).name("key") == wanted
    assert record(keys=[value, "x"]).names("keys") == [wanted, "x"]


def test_a_list_of_ids_names_the_one_that_is_wrong() -> None:
    with pytest.raises(UserError, match=r"field 'keys\[1\]': found null, wanted a string"):
        record(keys=["a", None]).names("keys")


@pytest.mark.parametrize("value", [1588687728.923, 1588687728923, 1588687728923.0, "1588687728923000"])
def test_a_date_is_a_number_of_any_unit(value: object) -> None:
    assert record(date=value).time("date") == 1588687728.923


def test_a_fault_quotes_the_beginning_of_what_is_long() -> None:
    with pytest.raises(UserError) as caught:
        top_record({"id": 10**400, "date": 10**400}, FILE, 0).time("date")
    assert "record 0 (id 1000" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_year_may_be_a_float() -> None:
    assert record(date=2009.0).dates("date") == record(date="2009").dates("date")


def entry(name: str, text: str) -> tuple[Record, Document]:
    return record(id=name), Document(id=name, user_id="u", text=text)


def test_a_document_that_stands_there_twice_is_kept_once_and_noted() -> None:
    notes: list[str] = []
    documents = profile([entry("a", "x"), entry("b", "y"), entry("a", "x")], notes.append)
    assert [document.id for document in documents] == ["a", "b"]
    assert len(notes) == 1
    assert "'a'" in notes[0]


def test_one_id_for_two_texts_is_a_fault() -> None:
    with pytest.raises(UserError, match="the id 'a' for a second, different document"):
        profile([entry("a", "x"), entry("a", "other")], ignore)


def test_the_question_comes_after_its_own_history() -> None:
    times = (5.0, None, 7.0)
    documents = [Document(id=str(i), user_id="u", text="x", time=time) for i, time in enumerate(times)]
    moment = moment_after(documents)
    assert moment is not None
    assert all(document.time < moment for document in documents if document.time is not None)
    assert moment_after(documents[1:2]) is None
    assert moment_after([]) is None
