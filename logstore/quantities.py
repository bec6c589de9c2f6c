"""Times, durations and sizes as people write them, read into milliseconds and bytes.

Owns the notation that the command line, HTTP, settings, topic configuration and ``read_offsets`` share. Every time is
UTC unless it has an offset: a client and a store in different zones read the same text as the same time. The current
time is passed in. Text that cannot be read raises ValueError with a sentence for the user.
"""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

from logstore.limits import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN

#: These texts are for messages and help.
TIME_FORMS = "2026-11-21T08:00:00Z, 2026-11-21, now, today, yesterday, -1h, -7d or ms since 1970"
DURATION_FORMS = "7d, 12h, 1h30m, 500ms"
SIZE_FORMS = "64MiB, 1GiB"

_DAY_MS = 86_400_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": _DAY_MS, "w": 7 * _DAY_MS}
_UNITS_BYTES: Mapping[str, int] = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for unit, base in (("B", 1000), ("iB", 1024))
}
_DIGITS = re.compile(r"[0-9]{1,19}")
_AMOUNT = re.compile(r"([0-9]{1,19})(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_AMOUNT.pattern})+")
_SIZE = re.compile(r"([0-9]{1,19}) ?([KMGT]?i?B)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration_ms(text: str) -> int:
    """Convert ``7d``, ``12h``, ``1h30m``, ``500ms`` (units w, d, h, m, s, ms) to ms."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"'{text}' is no duration: give one such as {DURATION_FORMS}")
    return sum(int(amount) * _UNITS_MS[unit] for amount, unit in _AMOUNT.findall(text))


def size_bytes(text: str) -> int:
    """Convert ``64MiB``, ``1GiB`` (powers of 1024), ``10MB`` (of 1000) to bytes."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _UNITS_BYTES:
        raise ValueError(f"'{text}' is no size: give one such as {SIZE_FORMS}")
    return int(found[1]) * _UNITS_BYTES[found[2]]


def timestamp_ms(text: str, now_ms: int) -> int:
    """Convert a time to ms since 1970-01-01T00:00:00Z: ``TIME_FORMS``, ISO 8601 in general.

    A fraction of a millisecond is rounded up: records have whole milliseconds, and lookups want the first record at or
    after a time.
    """
    midnight = now_ms - now_ms % _DAY_MS
    words = {"now": now_ms, "today": midnight, "yesterday": midnight - _DAY_MS}
    if text.lower() in words:
        return words[text.lower()]
    if _DIGITS.fullmatch(text):
        return _in_range(int(text), text)
    if text.startswith("-") and _DURATION.fullmatch(text[1:]):
        return _in_range(now_ms - duration_ms(text[1:]), text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is no time: give {TIME_FORMS}") from None
    return datetime_ms(moment)


def datetime_ms(moment: date) -> int:
    """Convert a date (its midnight) or a datetime like ``timestamp_ms``; in UTC if it has no zone."""
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    elif moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    return _in_range(-((_EPOCH - moment) // timedelta(milliseconds=1)), str(moment))


def _in_range(milliseconds: int, text: str) -> int:
    if not TIMESTAMP_MS_MIN <= milliseconds <= TIMESTAMP_MS_MAX:
        raise ValueError(f"'{text}' is out of range: times are from year 1 to 9999")
    return milliseconds
