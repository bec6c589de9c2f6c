"""Timestamps and dates in JSON strings, by one rule: RFC 3339, https://www.rfc-editor.org/rfc/rfc3339#section-5.6.

A date has ten characters. A timestamp may have a space instead of ``T``, and no zone, which is UTC; a fraction is cut
to microseconds. Hours end at 23 and seconds at 59, and in UTC the year is 1 to 9999. ``json_columns.c`` has the same
rule.
"""

import re
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa

#: The type of columns with timestamps.
TIMESTAMP: Final = pa.timestamp("us", "UTC")
#: The microseconds of one unit of each conversion from a number.
EPOCH_MICROS: Final = {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}
#: 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999Z in microseconds since 1970.
MICROS_MIN: Final = -62_135_596_800_000_000
MICROS_MAX: Final = 253_402_300_799_999_999

_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_TIMESTAMP: Final = re.compile(
    rf"{_DATE.pattern}[Tt ]([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))?",
    re.ASCII,
)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400
_DATE_LENGTH: Final = 10
_SECONDS_END: Final = 19
_ZONE_LENGTH: Final = len("+00:00")
# Longer texts are left to the caller: each length costs a round of vector steps.
_LENGTH_MAX: Final = 64
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def read_date(text: str) -> int | None:
    """Return the days since 1970; None if the text is no date."""
    found = _DATE.fullmatch(text)
    return None if found is None else _days(*map(int, found.groups()))


def read_timestamp(text: str) -> int | None:
    """Return the microseconds since 1970; None if the text is no timestamp."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    fraction, sign, zone_hour, zone_minute = found.groups()[6:]
    days = _days(year, month, day)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    zone_s = 0
    if sign:
        if int(zone_hour) > 23 or int(zone_minute) > 59:
            return None
        zone_s = int(f"{sign}1") * (int(zone_hour) * 3600 + int(zone_minute) * 60)
    seconds = days * _DAY_S + hour * 3600 + minute * 60 + second - zone_s
    micros = seconds * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))
    return micros if MICROS_MIN <= micros <= MICROS_MAX else None


def _days(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


# ---- columns --------------------------------------------------------------------------------------------------------


def read_dates(column: pa.StringArray) -> tuple[pa.Array, np.ndarray]:
    """Return dates, and which texts are none."""
    days, read = np.zeros(len(column), np.int32), np.zeros(len(column), np.bool_)
    for rows, text in _by_length(column, _DATE_LENGTH, _DATE_LENGTH):
        days[rows], read[rows] = _date_columns(text)
    return _array(column, days, read, pa.date32())


def read_timestamps(column: pa.StringArray) -> tuple[pa.Array, np.ndarray]:
    """Return timestamps, and which texts are none or have more than 64 characters."""
    micros, read = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    for rows, text in _by_length(column, _SECONDS_END, _LENGTH_MAX):
        micros[rows], read[rows] = _timestamp_columns(text)
    return _array(column, micros, read, TIMESTAMP)


def _array(
    column: pa.StringArray, numbers: np.ndarray, read: np.ndarray, kind: pa.DataType
) -> tuple[pa.Array, np.ndarray]:
    unread = ~read
    array = pa.array(numbers, mask=unread).view(kind)
    return array, unread & column.is_valid().to_numpy(zero_copy_only=False)


def _by_length(column: pa.StringArray, least: int, most: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each length the rows of that length, and their characters: one row of bytes each."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return []
    offset = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    characters = np.frombuffer(data, np.uint8)
    lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(offset), 0)
    found = []
    for length in np.flatnonzero(np.bincount(np.minimum(lengths, most + 1), minlength=most + 2)[: most + 1]):
        if length >= least:
            rows = np.flatnonzero(lengths == length)
            found.append((rows, characters[offset[rows][:, None] + np.arange(length)]))
    return found


def _number(text: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number in some columns of characters, and in which rows they are digits."""
    number, read = np.zeros(len(text), np.int64), np.ones(len(text), np.bool_)
    for at in range(begin, end):
        digit = text[:, at] - np.uint8(ord("0"))
        read &= digit <= 9
        number = number * 10 + digit
    return number, read


def _date_columns(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (year, a), (month, b), (day, c) = _number(text, 0, 4), _number(text, 5, 7), _number(text, 8, 10)
    read = a & b & c & (text[:, 4] == ord("-")) & (text[:, 7] == ord("-"))
    read &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    read &= day <= _MONTH_DAYS[np.where(read, month, 0)] + (leap & (month == 2))
    months = np.where(read, year * 12 + month - 1 - 1970 * 12, 0).astype("datetime64[M]")
    return months.astype("datetime64[D]").astype(np.int64) + day - 1, read


def _timestamp_columns(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    days, read = _date_columns(text)
    read &= np.isin(text[:, 10], list(b"Tt "))
    read &= (text[:, 13] == ord(":")) & (text[:, 16] == ord(":"))
    seconds = days * _DAY_S
    for begin, limit, unit_s in ((11, 24, 3600), (14, 60, 60), (17, 60, 1)):
        number, digits = _number(text, begin, begin + 2)
        read &= digits & (number < limit)
        seconds += number * unit_s
    length = text.shape[1]
    micros, end = np.zeros(len(text), np.int64), np.full(len(text), length)
    end -= np.isin(text[:, -1], list(b"Zz"))
    if length >= _SECONDS_END + _ZONE_LENGTH:
        sign = text[:, -6]
        zoned = (text[:, -3] == ord(":")) & ((sign == ord("+")) | (sign == ord("-")))
        (hours, a), (minutes, b) = _number(text, length - 5, length - 3), _number(text, length - 2, length)
        read &= ~zoned | (a & b & (hours < 24) & (minutes < 60))
        zone_s = hours * 3600 + minutes * 60
        seconds -= np.where(zoned, np.where(sign == ord("-"), -zone_s, zone_s), 0)
        end -= _ZONE_LENGTH * zoned
    # The fraction is between the seconds and the zone.
    read &= (end == _SECONDS_END) | ((end > _SECONDS_END + 1) & (text[:, min(_SECONDS_END, length - 1)] == ord(".")))
    for at in range(_SECONDS_END + 1, length):
        digit = text[:, at] - np.uint8(ord("0"))
        inside = at < end
        read &= ~inside | (digit <= 9)
        if at <= _SECONDS_END + 6:
            micros += np.where(inside, digit.astype(np.int64) * 10 ** (_SECONDS_END + 6 - at), 0)
    micros += seconds * 1_000_000
    return micros, read & (micros >= MICROS_MIN) & (micros <= MICROS_MAX)
