import struct

import pyarrow as pa
import pytest

from logstore.errors import LogStoreError, OffsetOutOfRangeError, QuarantinedError
from logstore.protocol.fetch_response import (
    RESPONSE_HEADER,
    PartitionData,
    encode_fetch_response,
    read_fetch_response,
)
from logstore.protocol.record_batch import RecordBatch, encode_batches
from logstore.records.schema import WIRE_SCHEMA


def record(value: bytes) -> RecordBatch:
    columns = [pa.array([given], field.type) for given, field in zip([7, None, value, None], WIRE_SCHEMA, strict=True)]
    return RecordBatch(11, 0, 1, 0, pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA).serialize())


def passed_on(*responses: PartitionData) -> list[PartitionData]:
    return list(read_fetch_response(pa.py_buffer(b"".join(map(bytes, encode_fetch_response(responses))))))


def test_records_errors_and_gaps_reach_the_other_end():
    records, gap, failed = passed_on(
        PartitionData(3, 0, 1, 12, 10, 12, encode_batches([record(b"v")])),
        PartitionData(1, 0, 0, 30, 30, 30, []),
        PartitionData.of_error(0, QuarantinedError("außerhalb")),
    )
    assert records.last_stable_offset == 10
    assert (records.index, records.log_start_offset, records.high_watermark, records.next_offset) == (3, 1, 12, 12)
    assert [batch.column("value").to_pylist() for batch in records.records(11)] == [[b"v"]]
    assert list(records.records(12)) == []
    assert (gap.index, gap.next_offset, gap.error, list(gap.records(0))) == (1, 30, None, [])
    assert (failed.index, type(failed.error), str(failed.error)) == (0, QuarantinedError, "außerhalb")
    assert [response.has_parquet for response in (records, gap, failed)] == [False] * 3


def test_an_offset_out_of_range_comes_with_the_range():
    (response,) = passed_on(
        PartitionData.of_error(2, OffsetOutOfRangeError("outside", log_start_offset=5, high_watermark=9))
    )
    error = response.error
    assert isinstance(error, OffsetOutOfRangeError)
    assert (str(error), error.log_start_offset, error.high_watermark) == ("outside", 5, 9)


def test_a_message_that_utf_8_cannot_carry_is_shown_nevertheless():
    (response,) = passed_on(PartitionData.of_error(0, LogStoreError("half \ud800")))
    assert str(response.error) == "half \\ud800"


def test_the_layout_is_a_header_of_48_bytes_and_the_content_padded_to_8():
    (header, content, padding) = encode_fetch_response([PartitionData(1, 2, 3, 5, 4, 6, [b"what"])])
    assert bytes(header) == struct.pack("<iiqqqqq", 1, 2, 3, 5, 4, 6, 4)
    assert (RESPONSE_HEADER.size, bytes(content), bytes(padding)) == (48, b"what", bytes(4))


@pytest.mark.parametrize("content", [b"x" * 8, struct.pack("<iiqqqqq", 0, 0, 0, 0, 0, 0, 8), b'{"error_code": 1}' * 4])
def test_bytes_that_are_no_fetch_response_are_refused(content: bytes):
    with pytest.raises(LogStoreError, match="not a log store"):
        list(read_fetch_response(pa.py_buffer(content)))
