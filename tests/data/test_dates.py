"""The notations of the benchmarks, against the calendar of the standard library."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.data.dates import parse_time


def seconds(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2018-03-07", seconds(2018, 3, 7)),
        ("2018-3-7", seconds(2018, 3, 7)),
        ("2009", seconds(2009, 1, 1)),
        ("2009-05", seconds(2009, 5, 1)),
        ("1369526400", 1369526400.0),
        ("1369526400.5", 1369526400.5),
        ("2023/05/20 (Sat) 02:21", seconds(2023, 5, 20, 2, 21)),
        ("2023/05/20", seconds(2023, 5, 20)),
        ("10:17 am on 20 September, 2023", seconds(2023, 9, 20, 10, 17)),
        ("12:05 am on 1 May, 2023", seconds(2023, 5, 1, 0, 5)),
        ("12:05 pm on 1 May, 2023", seconds(2023, 5, 1, 12, 5)),
        ("2024/Oct/14/09:14 AM", seconds(2024, 10, 14, 9, 14)),
        ("2024/Oct/14/12:59 PM", seconds(2024, 10, 14, 12, 59)),
        ("2024/Feb/29/01:00 PM", seconds(2024, 2, 29, 13)),
        (" 2018-03-07 ", seconds(2018, 3, 7)),
        ("2018-03-07T01:02:03", seconds(2018, 3, 7, 1, 2, 3)),
        ("2018-03-07T01:02:03+01:00", seconds(2018, 3, 7, 0, 2, 3)),
    ],
)
def test_every_notation_is_read(text: str, expected: float) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2023-02-29", "2018-13-01", "2018-00-01", "0000", "13:00 pm on 1 May, 2023",
     "0:30 am on 1 May, 2023", "2024/Foo/14/09:14 AM", "2023/05/20 (Sat) 25:00", "12", "123456"],
)  # fmt: skip
def test_what_is_no_date_is_none(text: str) -> None:
    assert parse_time(text) is None


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1)))
def test_each_notation_of_a_moment_gives_the_same_number(moment: datetime) -> None:
    moment = moment.replace(second=0, microsecond=0)
    expected = moment.replace(tzinfo=UTC).timestamp()
    for notation in ("%Y/%m/%d (%a) %H:%M", "%Y/%b/%d/%I:%M %p", "%I:%M %p on %d %B, %Y"):
        assert parse_time(moment.strftime(notation)) == expected


@given(st.text(max_size=40))
def test_no_text_at_all_raises(text: str) -> None:
    assert parse_time(text) is None or isinstance(parse_time(text), float)
