import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecordError, InvalidRequestError, RecordTooLargeError, RequestTooLargeError
from logstore.limits import HEADERS_PER_RECORD_MAX, REQUEST_RECORDS_MAX
from logstore.records.batch import (
    DecodedRecords,
    check_record_count,
    check_record_sizes,
    check_records,
    partition_batches,
    record_sizes,
)
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA
from tests.support.records import Row, rows, wire_batch, wire_rows

_SMALL = Row(None, b"k", b"value", None)


@given(st.lists(rows, max_size=20), st.integers(0, 20), st.integers(0, 20))
@settings(deadline=None)
def test_sizes_are_those_of_each_record_also_in_a_slice(records, skip, length):
    batch = wire_batch(records).slice(skip, length)
    assert record_sizes(batch).tolist() == [record.size for record in records[skip : skip + length]]


def test_a_null_list_of_headers_has_no_size_whatever_lies_under_it():
    elements = pa.array([{"key": "k", "value": b"hidden"}], HEADERS_TYPE.value_type)
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), elements, type=HEADERS_TYPE, mask=pa.array([True]))
    headers = pa.concat_arrays([headers, pa.array([[("a", b"bc")]], HEADERS_TYPE)])
    nulls = [pa.nulls(2, field.type) for field in WIRE_SCHEMA][:3]
    assert record_sizes(pa.RecordBatch.from_arrays([*nulls, headers], schema=WIRE_SCHEMA)).tolist() == [0, 3]


def test_a_record_at_the_limit_passes_and_one_byte_more_is_named():
    batch = wire_batch([_SMALL, Row(None, b"kk", b"value", (("h", b"12"),)), Row(None, None, b"x" * 99, None)])
    check_record_sizes(batch.slice(0, 2), 10, range(2))
    with pytest.raises(RecordTooLargeError, match=r"Record 8 .* has 10 bytes .* allows 9:"):
        check_record_sizes(batch, 9, range(7, 10))


def test_no_record_is_no_request():
    with pytest.raises(InvalidRequestError, match="records may not be empty"):
        check_records(wire_batch([]), 100)


def test_headers_of_a_record_are_bounded():
    full = Row(None, None, None, (("", b""),) * HEADERS_PER_RECORD_MAX)
    check_records(wire_batch([full]), 100)
    over = Row(None, None, None, (("", b""),) * (HEADERS_PER_RECORD_MAX + 1))
    with pytest.raises(InvalidRecordError, match=f"Record 1 .* {HEADERS_PER_RECORD_MAX + 1} headers.* at most 1000 "):
        check_records(wire_batch([full, over]), 100)


def test_records_of_a_request_are_bounded():
    check_record_count(REQUEST_RECORDS_MAX)
    with pytest.raises(RequestTooLargeError):
        check_record_count(REQUEST_RECORDS_MAX + 1)


@given(st.lists(st.tuples(rows, st.integers(0, 3)), min_size=1, max_size=30))
@settings(deadline=None)
def test_split_keeps_every_record_once_and_in_order(pairs):
    records = [record for record, _ in pairs]
    partitions = np.array([partition for _, partition in pairs], np.int32)
    split = partition_batches(DecodedRecords(wire_batch(records), None), partitions)
    expected = {
        partition: [(row, record) for row, (record, its) in enumerate(pairs) if its == partition]
        for partition in sorted({partition for _, partition in pairs})
    }
    assert [part.partition for part in split] == list(expected)
    for part in split:
        positions = range(len(records)) if part.rows is None else part.rows.tolist()
        assert list(zip(positions, wire_rows(part.batch), strict=True)) == expected[part.partition]


def test_only_a_request_for_one_partition_stays_verbatim():
    verbatim = pa.py_buffer(b"as sent")
    records = DecodedRecords(wire_batch([_SMALL, _SMALL]), None, verbatim)
    (whole,) = partition_batches(records, np.array([3, 3], np.int32))
    assert (whole.partition, whole.rows, whole.verbatim) == (3, None, verbatim)
    assert whole.batch is records.batch
    assert [part.verbatim for part in partition_batches(records, np.array([1, 0], np.int32))] == [None, None]
