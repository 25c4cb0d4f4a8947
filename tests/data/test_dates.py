"""The notations of the benchmarks, against the calendar of the standard library."""

import math
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.data.dates import parse_exact, parse_interval, parse_time, readable


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
        ("1588687728.923", 1588687728.923),
        ("1588687728923", 1588687728.923),
        ("1588687728923000", 1588687728.923),
        ("1588687728923000000", 1588687728.923),
        ("1588687728923.0", 1588687728.923),
        ("-123456789000", -123456789.0),
        ("2009.0", seconds(2009, 1, 1)),
        ("20180307", seconds(2018, 3, 7)),
        ("20180307.0", seconds(2018, 3, 7)),
        ("201803071205", seconds(2018, 3, 7, 12, 5)),
        ("20180307120506", seconds(2018, 3, 7, 12, 5, 6)),
        ("2024-01-01 10:00:01 UTC", seconds(2024, 1, 1, 10, 0, 1)),
        ("2024-01-01T10:00 gmt", seconds(2024, 1, 1, 10)),
        ("2024-01-01 10:00:00 +0230", seconds(2024, 1, 1, 7, 30)),
        ("Mon, 01 Jan 2024 10:00:00 GMT", seconds(2024, 1, 1, 10)),
        ("1 Jan 2024 10:00 EST", seconds(2024, 1, 1, 15)),
        ("Mon Jan 01 2024 10:00:00 GMT+0100 (Central European Standard Time)", seconds(2024, 1, 1, 9)),
        ("2024-01-01 01:30 PM", seconds(2024, 1, 1, 13, 30)),
        ("2024/1/1, 12:00:05 am UTC", seconds(2024, 1, 1, 0, 0, 5)),
        ("29.12.2023 22:42", seconds(2023, 12, 29, 22, 42)),
        ("Jan 5, 2024 01:30 p.m.", seconds(2024, 1, 5, 13, 30)),
        ("2024-01-01 24:00:00", seconds(2024, 1, 2)),
        ("2024-12-31T24:00Z", seconds(2025, 1, 1)),
        ("2024-01-01T24:00:00+01:00", seconds(2024, 1, 1, 23)),
        ("2024-01-01 10:00:00,250", seconds(2024, 1, 1, 10) + 0.25),
        ("45292.5", seconds(2024, 1, 1, 12)),
        ("45292.41666666667", seconds(2024, 1, 1, 10)),
    ],
)
def test_every_notation_is_read(text: str, expected: float) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2023-02-29", "2018-13-01", "2018-00-01", "0000", "13:00 pm on 1 May, 2023",
     "0:30 am on 1 May, 2023", "2024/Foo/14/09:14 AM", "2023/05/20 (Sat) 25:00", "12", "123456",
     "99999999999", "20181307", "201803072400", "20180307120060", "15886877289230", "15886877289230000",
     "1" * 20, "2009.5", "1.588687728923e+12", "Mon, 01 Jan 2024 10:00:00 CET", "2018-03-07 -0500",
     "2024-01-01 24:00:01", "2024-01-01 24:30", "2024-13-01 01:30 PM", "2024-01-01 13:30 PM", "03/04/2024",
     "Mon, 32 Jan 2024 10:00:00 GMT", "19999", "80000", "-45292", "1:" * 5000, "10:00" + "1" * 5000],
)  # fmt: skip
def test_what_is_no_date_is_none(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("text", "first", "following"),
    [
        ("2015", (2015, 1, 1), (2016, 1, 1)),
        ("2016", (2016, 1, 1), (2017, 1, 1)),
        ("2015-05", (2015, 5, 1), (2015, 6, 1)),
        ("2015-12", (2015, 12, 1), (2016, 1, 1)),
        ("2016-2", (2016, 2, 1), (2016, 3, 1)),
        ("2015-02-28", (2015, 2, 28), (2015, 3, 1)),
        ("20150228", (2015, 2, 28), (2015, 3, 1)),
        ("2015-W02", (2015, 1, 5), (2015, 1, 12)),
        ("2015-W02-3", (2015, 1, 7), (2015, 1, 8)),
        ("2015-02-28T07", (2015, 2, 28, 7), (2015, 2, 28, 8)),
        ("2015-02-28T07+01:00", (2015, 2, 28, 6), (2015, 2, 28, 7)),
        ("2023/05/20 (Sat)", (2023, 5, 20), (2023, 5, 21)),
        ("2024/Dec/31", (2024, 12, 31), (2025, 1, 1)),
        ("20 September, 2023", (2023, 9, 20), (2023, 9, 21)),
        ("Jan 5, 2024", (2024, 1, 5), (2024, 1, 6)),
        ("45292", (2024, 1, 1), (2024, 1, 2)),
    ],
)
def test_a_date_without_a_clock_lasts_until_the_next_one_begins(
    text: str, first: tuple[int, ...], following: tuple[int, ...]
) -> None:
    interval = parse_interval(text)
    assert interval is not None
    assert interval[0] == parse_time(text) == seconds(*first)
    assert interval[1] < seconds(*following) == math.nextafter(interval[1], math.inf)


@pytest.mark.parametrize(
    "text",
    ["1369526400", "1369526400.5", "2023/05/20 (Sat) 02:21", "10:17 am on 20 September, 2023",
     "2024/Oct/14/09:14 AM", "2018-03-07T01:02", "20180307T0102", "2018-03-07 01:02:03.5+01:00"],
)  # fmt: skip
def test_a_date_with_a_clock_is_a_point_in_time(text: str) -> None:
    moment = parse_time(text)
    assert moment is not None
    assert parse_interval(text) == (moment, moment)


def test_the_last_year_of_the_calendar_has_an_end() -> None:
    for text in ("9999", "9999-12", "9999-12-31"):
        interval = parse_interval(text)
        assert interval is not None
        assert seconds(9999, 12, 31, 23, 59, 59) < interval[1] < seconds(9999, 12, 31) + 86400


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1)))
def test_each_notation_of_a_moment_gives_the_same_number(moment: datetime) -> None:
    moment = moment.replace(second=0, microsecond=0)
    expected = moment.replace(tzinfo=UTC).timestamp()
    for notation in ("%Y/%m/%d (%a) %H:%M", "%Y/%b/%d/%I:%M %p", "%I:%M %p on %d %B, %Y"):
        assert parse_time(moment.strftime(notation)) == expected


@given(st.integers(10**8, 10**10 - 1), st.sampled_from([0, 3, 6, 9]), st.booleans())
def test_the_size_of_a_number_tells_its_unit(moment: int, power: int, negative: bool) -> None:
    text = str((-moment if negative else moment) * 10**power)
    if not text.startswith(("19", "20")) or len(text) not in (12, 14):
        assert parse_interval(text) == (-moment if negative else moment,) * 2


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2099, 12, 31)))
def test_a_calendar_date_in_digits_is_never_taken_for_a_count(moment: datetime) -> None:
    expected = moment.replace(microsecond=0, tzinfo=UTC).timestamp()
    assert parse_time(moment.strftime("%Y%m%d%H%M%S")) == expected
    assert parse_time(moment.strftime("%Y%m%d%H%M")) == expected - moment.second


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2099, 12, 31), timezones=OFFSETS))
def test_a_moment_is_one_in_the_forms_of_programs(moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    forms = [
        moment.isoformat(),
        format_datetime(moment),
        moment.strftime("%a %b %d %Y %H:%M:%S GMT%z (Some Time)"),
        moment.strftime("%Y-%m-%d %H:%M:%S %z"),
        moment.astimezone(UTC).strftime("%Y-%m-%d %I:%M:%S %p"),
        moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    ]
    assert {parse_time(form) for form in forms} == {moment.timestamp()}


@given(st.lists(st.integers(0, 10**18), min_size=2, max_size=5), st.integers(0, 999))
def test_nanoseconds_are_in_their_order(moments: list[int], near: int) -> None:
    """As numbers and as ISO 8601: by the float, and then by what it lacks."""
    moments += [10**17 + moment % 1000 + near for moment in moments]

    def iso(moment: int) -> str:
        return f"{datetime.fromtimestamp(moment // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{moment % 10**9:09}Z"

    for write in (iso, lambda moment: str(moment + 10**18)):
        keys = {moment: parse_exact(write(moment)) for moment in moments}
        assert sorted(keys, key=lambda m: (keys[m][0], keys[m][2])) == sorted(keys)  # type: ignore[index]


@given(st.text(max_size=40))
def test_no_text_at_all_raises(text: str) -> None:
    assert parse_time(text) is None or isinstance(parse_time(text), float)
    interval = parse_interval(text)
    assert interval is None or interval[0] <= interval[1]


@given(st.integers(0, 4 * 10**9), st.sampled_from([0, 3, 6, 9]))
def test_a_count_of_seconds_is_shown_as_a_moment(moment: int, power: int) -> None:
    text = str(moment * 10**power)
    shown = readable(text)
    assert parse_time(shown) == parse_time(text)
    if parse_time(text) == moment:  # a number that counts, and none of a calendar
        assert shown == datetime.fromtimestamp(moment, UTC).replace(tzinfo=None).isoformat()
    assert readable("2018-03") == "2018-03"
