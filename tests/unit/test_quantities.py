from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.quantities import datetime_ms, duration_ms, size_bytes, timestamp_ms

#: 2026-11-22T09:30:00Z
NOW = 1_795_339_800_000
MIDNIGHT = 1_795_305_600_000
HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1735689600000", 1_735_689_600_000),
        ("2025-01-01", 1_735_689_600_000),
        ("2025-01-01T00:00:00Z", 1_735_689_600_000),
        ("2025-01-01 00:00", 1_735_689_600_000),
        ("2025-01-01T02:00:00+02:00", 1_735_689_600_000),
        ("2024-12-31T19:00-0500", 1_735_689_600_000),
        ("20250101T000000Z", 1_735_689_600_000),
        ("2025-01-01T00:00:00.25Z", 1_735_689_600_250),
        # A fraction of a millisecond is later than the millisecond before it.
        ("2025-01-01T00:00:00.000001Z", 1_735_689_600_001),
        ("1969-12-31T23:59:59Z", -1000),
        ("0001-01-01", -62_135_596_800_000),
        ("now", NOW),
        ("Today", MIDNIGHT),
        ("yesterday", MIDNIGHT - DAY),
        ("-1h", NOW - HOUR),
        ("-7d", NOW - 7 * DAY),
        ("-1d12h", NOW - 36 * HOUR),
        ("-500ms", NOW - 500),
    ],
)
def test_times(text, expected):
    assert timestamp_ms(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "1h",
        "+1h",
        "-1",
        "-5000",
        "2026-13-01",
        "2026-11-21T25:00",
        "21.11.2026",
        "1e3",
        "1.5",
        "-1y",
        "٣",
        " now",
    ],
)
def test_a_text_that_is_no_time_is_refused_with_the_forms_of_times(text):
    with pytest.raises(ValueError, match=r"is no time: give 2026-11-21T08:00:00Z.* yesterday, -1h"):
        timestamp_ms(text, NOW)


@pytest.mark.parametrize("text", ["-9999w", "0001-01-01T00:00+01:00", "9999-12-31T23:59-01:00", "253402300800000"])
def test_times_that_no_record_can_have(text):
    if text == "-9999w":
        timestamp_ms(text, NOW)
        text = "-9999999w"
    with pytest.raises(ValueError, match="year 1 to 9999"):
        timestamp_ms(text, NOW)


@given(st.datetimes(max_value=datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_datetime_and_its_text_are_the_same_time(moment):
    assert timestamp_ms(moment.isoformat(), NOW) == datetime_ms(moment)
    assert -0.1 < datetime_ms(moment) - moment.timestamp() * 1000 < 1.1


def test_datetimes_without_a_zone_are_utc():
    assert datetime_ms(datetime(2025, 1, 1)) == datetime_ms(date(2025, 1, 1)) == 1_735_689_600_000  # noqa: DTZ001
    assert datetime_ms(datetime(2025, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 1_735_689_600_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7d", 7 * DAY), ("12h", 12 * HOUR), ("500ms", 500), ("1h30m", 5_400_000), ("2w", 14 * DAY), ("0s", 0)],
)
def test_durations(text, expected):
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "7", "7 d", "-7d", "1.5h", "7D", "d", "7dd", "7d ", "1y", "٣d"])
def test_a_text_that_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="7d, 12h"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64MiB", 64 * 1024**2), ("1 GiB", 1024**3), ("10MB", 10_000_000), ("1KB", 1000), ("512B", 512)],
)
def test_sizes(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "64", "64mib", "64M", "iB", "1iB", "-1KiB", "1.5GiB"])
def test_a_text_that_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="64MiB"):
        size_bytes(text)
