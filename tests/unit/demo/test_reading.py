"""The number of times that each value was stored, as the demo of a cluster counts it."""

import pyarrow as pa

from docs.demo.reading import times_stored

EXPECTED = pa.chunked_array([[b"a", b"b"], [b"c"]])


def test_each_value_once_in_any_order():
    assert times_stored(EXPECTED, pa.chunked_array([[b"c"], [b"b", b"a"]])) == (0, 0, 0)


def test_missing_doubled_and_unknown_records_are_counted():
    found = pa.chunked_array([[b"a", b"a"], [b"a", b"x", b"c"]])
    assert times_stored(EXPECTED, found) == (1, 1, 1)


def test_nothing_was_stored():
    assert times_stored(EXPECTED, pa.chunked_array([[]], pa.binary())) == (3, 0, 0)
