"""Moments in the notations of the benchmarks, as seconds since 1970-01-01 UTC.

No benchmark states a time zone, so all are read as UTC. Month names are matched against a table of
our own: `strptime` would read them in the language of the process.
"""

import re
from datetime import UTC, datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})"
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
    )
)
_EPOCH = re.compile(r"-?\d{9,}(?:\.\d+)?", re.ASCII)


def parse_time(text: str) -> float | None:
    """Seconds since 1970-01-01 UTC of a date as the benchmarks write it, None where it is none.

    Reads years, months, days, ISO 8601, seconds since 1970 (nine digits or more) and the notations
    of LongMemEval, LoCoMo and PersonaBench. A date without a day or an hour means its first moment.

    >>> parse_time("2018-03-07"), parse_time("10:17 am on 20 September, 2023"), parse_time("soon")
    (1520380800.0, 1695205020.0, None)
    """
    text = text.strip()
    if _EPOCH.fullmatch(text):
        return float(text)
    for pattern in _PATTERNS:
        if match := pattern.fullmatch(text):
            return _seconds({key: value for key, value in match.groupdict().items() if value})
    return _iso(text)


def _seconds(parts: dict[str, str]) -> float | None:
    month = _month(parts.get("month", "1"))
    hour, half = int(parts.get("hour", "0")), parts.get("half", "").lower()
    if half and not 1 <= hour <= 12:
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    try:
        day, minute = int(parts.get("day", "1")), int(parts.get("minute", "0"))
        return datetime(int(parts["year"]), month, day, hour, minute, tzinfo=UTC).timestamp()
    except ValueError:  # no such day or hour
        return None


def _month(text: str) -> int:
    """1 to 12; 0, which no calendar has, for a word that is no month."""
    if text.isdecimal():
        return int(text)
    key = text.lower()[:3]
    return _MONTHS.index(key) + 1 if key in _MONTHS else 0


def _iso(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
