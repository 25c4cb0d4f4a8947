"""Dates in the notations of the benchmarks, as seconds since 1970-01-01 UTC.

A date without a clock is an interval: "2015" may mean any moment of that year.
No benchmark states a time zone, so all are read as UTC. Month names are matched against a table of
our own: `strptime` would read them in the language of the process.
"""

import calendar
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})"
_SECONDS = rf"{_CLOCK}(?::(?P<second>\d{{2}}))?"
_HALF = r"\s*(?P<half>[ap])\.?m\.?"
_PATTERNS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        # LaMP: 2009, 2009-05, 2018-03-07
        r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?)?",
        # LongMemEval: 2023/05/20 (Sat) 02:21
        rf"(?P<year>\d{{4}})/(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})(?:\s*\([a-z]+\))?(?:\s+{_CLOCK})?",
        # PersonaBench: 2024/Oct/14/09:14 AM
        rf"(?P<year>\d{{4}})/(?P<month>[a-z]+)/(?P<day>\d{{1,2}})(?:/{_CLOCK}{_HALF})?",
        # LoCoMo: 10:17 am on 20 September, 2023
        rf"(?:{_CLOCK}{_HALF}\s+on\s+)?(?P<day>\d{{1,2}})\s+(?P<month>[a-z]+),?\s+(?P<year>\d{{4}})",
        # REALTALK: 29.12.2023, 22:42:04; and without the comma
        rf"(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>\d{{4}})(?:,?\s+{_CLOCK}(?::(?P<second>\d\d))?)?",
        # 2024-01-01 01:30 PM; Jan 5, 2024 and Jan 5, 2024 01:30 PM
        rf"(?P<year>\d{{4}})[-/](?P<month>\d{{1,2}})[-/](?P<day>\d{{1,2}}),?\s+{_SECONDS}{_HALF}",
        rf"(?P<month>[a-z]+)\s+(?P<day>\d{{1,2}}),?\s+(?P<year>\d{{4}})(?:,?\s+{_SECONDS}{_HALF})?",
        # 20180307; 201803071200 and 20180307120000
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
        r"(?P<year>(?:19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)?",
    )
)
_ISO_HOUR = re.compile(r"[\dW-]{7,10}\D\d{2}(?:Z|[+-]\d{2}(?::?\d{2})?)?", re.ASCII)  # and no minute
_MIDNIGHT = re.compile(r"(?<=[T ])24:00(?::00(?:[.,]0+)?)?(?![\d:.,])", re.ASCII)  # at the end of a day
_FRACTION = re.compile(r":\d\d[.,](\d+)", re.ASCII)
_ZONED = (
    re.compile(  # a clock, and what may stand behind it: UTC, or an offset and its name, as in JavaScript
        r"(.*?\d:\d\d[:.,\d]*(?:\s*[ap]\.?m\.?)?)\s*(?:UTC|GMT|Z)?(?:\s*([+-]\d\d):?(\d\d)(?:\s*\(.*\))?)?",
        re.ASCII | re.IGNORECASE,
    )
)
_NAMED_MONTH = re.compile(  # RFC 2822, and JavaScript's Date
    r"(?:[a-z]{3},?\s+)?(?:\d{1,2}\s+[a-z]{3,9}|[a-z]{3,9}\s+\d{1,2}),?\s+\d{4}\s+\d{1,2}:\d\d(?::\d\d)?"
    r"(?:[+-]\d{4}|\s+[ECMP][SD]T)?",
    re.ASCII | re.IGNORECASE,
)
_LONGEST = 200  # characters of a date
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SERIAL, _LAST_SERIAL, _SERIAL_OF_EPOCH = 20_000, 79_999, 25_569  # days of Excel, 1954 to 2119
_DAY, _HOUR = 86400.0, 3600.0
_NUMBER = re.compile(r"-?(?P<whole>\d+)(?:\.\d+)?", re.ASCII)
_UNITS = {digits + more: more for more in (0, 3, 6, 9) for digits in (9, 10)}
"""By the digits of a number: the power of ten that it counts seconds in. 9 and 10 digits are 1973 to 2286."""
EPOCHS = "seconds, ms, µs or ns since 1970 of 9-10, 12-13, 15-16 or 18-19 digits"


def parse_time(text: str) -> float | None:
    """Seconds since 1970-01-01 UTC of a date as the benchmarks write it, None where it is none.

    Reads years, months, days, ISO 8601, and the notations of LongMemEval, LoCoMo, PersonaBench and
    REALTALK. A number of 9 or 10 digits is seconds since 1970, of 12 or 13 milliseconds, of 15 or 16
    microseconds, of 18 or 19 nanoseconds: the years 1973 to 2286, or before 1967 with a minus. 8 digits, and
    12 or 14 that begin with 19 or 20, are a calendar's: YYYYMMDD, YYYYMMDDhhmm, YYYYMMDDhhmmss. A number
    from 20000 to 79999 is a day of Excel's. No other number but a year is a date. RFC 2822, JavaScript's
    Date and clocks with AM or PM are read too, and UTC or GMT behind a clock. A date without a day or an
    hour means its first moment here.

    >>> parse_time("2018-03-07"), parse_time("10:17 am on 20 September, 2023"), parse_time("soon")
    (1520380800.0, 1695205020.0, None)
    """
    found = parse_interval(text)
    return None if found is None else found[0]


def parse_interval(text: str) -> tuple[float, float] | None:
    """The first and the last moment that a date may mean, as `parse_time` reads it; None where it is none.

    The last one is inclusive: the greatest float before the next year, month, week, day or hour begins. A
    date with minutes or seconds since 1970 are points in time: both moments are the same.

    >>> first, last = parse_interval("2018-03")
    >>> first == parse_time("2018-03-01"), parse_time("2018-03-31T23:59:59") < last < parse_time("2018-04")
    (True, True)
    """
    found = parse_exact(text)
    return None if found is None else found[:2]


def parse_exact(text: str) -> tuple[float, float, float] | None:
    """As `parse_interval`, and what the float of the first moment lacks, in seconds. This orders moments that
    are one float, such as two in one microsecond."""
    if (found := _exact(text)) is None:
        return None
    exact, length = found
    first = float(exact)
    last = math.nextafter(first + length, -math.inf) if length else first
    return first, last, float(exact - Decimal(first))


def _exact(text: str) -> tuple[Decimal, float] | None:
    """The first moment of a date, and its length in seconds, 0 for a moment; None where it is no date."""
    text = re.sub(r"^(-?\d+)\.0+$", r"\1", text.strip(), flags=re.ASCII)  # as pandas writes integers
    if len(text) > _LONGEST:
        return None
    if zoned := _ZONED.fullmatch(text):
        text = "".join(filter(None, zoned.groups()))
    if match := next(filter(None, (pattern.fullmatch(text) for pattern in _PATTERNS)), None):
        return _calendar({key: value for key, value in match.groupdict().items() if value})
    if not (number := _NUMBER.fullmatch(text)):
        return _iso(text)
    value, unit = Decimal(text), _UNITS.get(len(number["whole"]))
    if unit is not None:
        return value.scaleb(-unit), 0.0
    if _FIRST_SERIAL <= value <= _LAST_SERIAL:
        return round((value - _SERIAL_OF_EPOCH) * int(_DAY), 3), _DAY if value == int(value) else 0.0
    return None


def readable(text: str) -> str:
    """A date as it is written; a number that counts from 1970 as ISO 8601, in UTC.

    >>> readable("2018-03"), readable("1740816000")
    ('2018-03', '2025-03-01T08:00:00')
    """
    calendar_date = any(pattern.fullmatch(text) for pattern in _PATTERNS)
    moment = None if calendar_date or not _NUMBER.fullmatch(text) else parse_time(text)
    return text if moment is None else (datetime(1970, 1, 1) + timedelta(seconds=moment)).isoformat()


def _calendar(parts: dict[str, str]) -> tuple[Decimal, float] | None:
    """As `_exact`, of a date in parts: a year, a month or a day, or a moment with a clock."""
    month, hour, half = _month(parts.get("month", "1")), int(parts.get("hour", "0")), parts.get("half", "")
    if half and not 1 <= hour <= 12:
        return None
    if half:
        hour = hour % 12 + 12 * (half in "pP")
    year, day, minute, second = (
        int(parts.get(name, name == "day")) for name in ("year", "day", "minute", "second")
    )
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:  # no such day or hour
        return None
    days = 365 + calendar.isleap(year)
    if "month" in parts:
        days = 1 if "day" in parts else calendar.monthrange(year, month)[1]
    return Decimal(moment.timestamp()), 0.0 if "hour" in parts else days * _DAY


def _month(text: str) -> int:
    """1 to 12; 0, which no calendar has, for a word that is no month."""
    if text.isdecimal():
        return int(text)
    key = text.lower()[:3]
    return _MONTHS.index(key) + 1 if key in _MONTHS else 0


def _iso(text: str) -> tuple[Decimal, float] | None:
    """As `_exact`, of ISO 8601, or of a date with a month's name; to all its digits."""
    read = parsedate_to_datetime if _NAMED_MONTH.fullmatch(text) else datetime.fromisoformat
    within = _MIDNIGHT.sub("00:00", text)
    try:
        moment = read(within)
        since = moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH
    except (ValueError, OverflowError):
        return None
    more = digits[1][6:24] if (digits := _FRACTION.search(text)) else ""
    seconds = Decimal(since // timedelta(microseconds=1)).scaleb(-6)
    finer = Decimal(int(more or 0)).scaleb(-6 - len(more))
    try:
        date.fromisoformat(text)
        length = 7 * _DAY if re.fullmatch(r"\d{4}-?W\d{2}", text) else _DAY
    except ValueError:
        length = _HOUR if _ISO_HOUR.fullmatch(text) else 0.0
    return seconds + finer + (int(_DAY) if within != text else 0), length
