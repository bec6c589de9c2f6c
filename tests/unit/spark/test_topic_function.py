"""Arguments of ``logstore_topic``, as SQL passes them."""

import datetime as dt

import pytest

from logstore.errors import InvalidRequestError
from logstore.spark.topic_function import offset_spec


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        ("earliest", "earliest"),
        ("-1h", "-1h"),
        (dt.date(2026, 11, 21), dt.date(2026, 11, 21)),
        (dt.datetime(2026, 11, 21, tzinfo=dt.UTC), dt.datetime(2026, 11, 21, tzinfo=dt.UTC)),
        ('{"0": 100, "1": "latest", "2": -2}', {0: 100, 1: "latest", 2: -2}),
        (' {"0": "yesterday"}', {0: "yesterday"}),
        ("{}", {}),
    ],
)
def test_words_times_and_json_by_partition(value, spec):
    assert offset_spec("starting", value) == spec


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(InvalidRequestError, match=r"^starting => TIMESTAMP_NTZ .* has no time zone: give TIMESTAMP"):
        offset_spec("starting", dt.datetime.fromisoformat("2026-11-21T08:30"))


@pytest.mark.parametrize("value", [None, 7, 1.5, [1], "{0: 1}", '{"0": 1', '{"zero": 1}'])
def test_any_other_value_is_refused(value):
    with pytest.raises(InvalidRequestError, match=r'^ending => .*: give "earliest", "latest", a time, or JSON that'):
        offset_spec("ending", value)
