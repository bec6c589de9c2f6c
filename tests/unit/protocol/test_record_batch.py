import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.errors import LogStoreError
from logstore.protocol.record_batch import (
    LOG_APPEND_TIME,
    PARQUET,
    RecordBatch,
    begins_with_parquet,
    encode_batches,
    read_records,
)
from logstore.records.schema import LOG_SCHEMA, SEGMENT_SCHEMA, WIRE_SCHEMA


def wire(*values: str, timestamps=None, codec=None) -> pa.Buffer:
    columns = [
        pa.array(timestamps or [None] * len(values), WIRE_SCHEMA.field(0).type),
        pa.array([value.encode()[:1] for value in values], pa.binary()),
        pa.array([value.encode() for value in values], pa.binary()),
        pa.nulls(len(values), WIRE_SCHEMA.field(3).type),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIRE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)  # after the schema
        begin = sink.tell()
        writer.write_batch(batch)
        end = sink.tell()
    return sink.getvalue().slice(begin, end - begin)


def sealed(offsets: list[int]) -> pa.RecordBatch:
    columns = [
        pa.array(offsets),
        pa.array([7] * len(offsets), LOG_SCHEMA.field("timestamp").type),
        pa.nulls(len(offsets), pa.binary()),
        pa.array([b"%d" % offset for offset in offsets]),
        pa.nulls(len(offsets), LOG_SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def parquet(offsets: list[int]) -> pa.Buffer:
    """Return a row group as in a segment: times in microseconds, and a column of its topic."""
    columns = pa.Table.from_batches([sealed(offsets)]).cast(SEGMENT_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(columns.append_column("group", pa.array(["g"] * len(offsets))), sink)
    return sink.getvalue()


def body(*batches: RecordBatch) -> pa.Buffer:
    return pa.py_buffer(b"".join(bytes(piece) for piece in encode_batches(batches)))


def read(content: pa.Buffer, first_offset: int = 0):
    """Return (offset, timestamp, value) of every record, after checking the batches as promised to readers."""
    rows = []
    for batch in read_records(content, first_offset):
        assert batch.schema == LOG_SCHEMA
        batch.validate(full=True)
        assert batch.num_rows
        columns = (batch.column("offset"), batch.column("timestamp").cast(pa.int64()), batch.column("value"))
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_offsets_and_timestamps_are_filled_in(codec):
    content = body(
        RecordBatch(5, 1_000, 2, 0, wire("a", "b" * 300, codec=codec)),
        RecordBatch(7, 2_000, 3, 0, wire("c", "d", "e", timestamps=[None, 0, 9], codec=codec)),
        RecordBatch(10, 3_000, 2, LOG_APPEND_TIME, wire("f", "g", timestamps=[1, None], codec=codec)),
    )
    assert read(content) == [
        (5, 1_000, b"a"),
        (6, 1_000, b"b" * 300),
        (7, 2_000, b"c"),
        (8, 0, b"d"),
        (9, 9, b"e"),
        (10, 3_000, b"f"),
        (11, 3_000, b"g"),
    ]


def test_records_before_the_first_offset_are_left_out():
    content = body(
        RecordBatch(5, 0, 2, 0, wire("a", "b")), RecordBatch(7, 0, 3, 0, wire("c", "d", "e", timestamps=[1, 2, 3]))
    )
    assert [offset for offset, _, _ in read(content, 8)] == [8, 9]
    assert [offset for offset, _, _ in read(content, 6)] == [6, 7, 8, 9]
    assert read(content, 10) == []


def test_sealed_history_has_gaps_and_stands_before_the_tail():
    content = body(
        RecordBatch(3, 0, 3, PARQUET, parquet([3, 7, 9])),
        RecordBatch(10, 1, 1, 0, wire("x")),
        RecordBatch(12, 0, 2, PARQUET, parquet([12, 20])),
    )
    assert [(offset, value) for offset, _, value in read(content, 4)] == [
        (7, b"7"),
        (9, b"9"),
        (10, b"x"),
        (12, b"12"),
        (20, b"20"),
    ]


def test_row_groups_come_as_parquet_files():
    content = body(
        RecordBatch(3, 0, 3, PARQUET, parquet([3, 7, 9])),
        RecordBatch(10, 0, 1, PARQUET, parquet([10])),
        RecordBatch(12, 0, 2, PARQUET, parquet([12, 20])),
        RecordBatch(21, 0, 1, PARQUET, parquet([21])),
        RecordBatch(22, 5, 1, 0, wire("x")),
    )
    rows = [(3, 7, b"3"), (7, 7, b"7"), (9, 7, b"9"), (10, 7, b"10"), (12, 7, b"12"), (20, 7, b"20"), (21, 7, b"21")]
    assert read(content) == [*rows, (22, 5, b"x")]
    assert read(content, 8) == [*rows[2:], (22, 5, b"x")]


@pytest.mark.parametrize(
    "batch",
    [
        RecordBatch(3, 0, 2, PARQUET, parquet([3])),
        RecordBatch(3, 0, 1, PARQUET, parquet([3]).slice(0, 40)),
        RecordBatch(3, 0, 1, PARQUET, pa.py_buffer(bytes(500))),
        RecordBatch(3, 0, 1, PARQUET, b""),
        RecordBatch(3, 0, 1, PARQUET | 2, parquet([3])),
    ],
    ids=["another number of records", "cut", "zeros", "nothing", "a flag that there is not"],
)
def test_a_payload_that_is_no_row_group_is_refused(batch):
    with pytest.raises(LogStoreError, match="not a log store, or of another version"):
        read(body(batch))


def test_a_row_group_in_the_first_batch_is_recognised():
    assert begins_with_parquet(body(RecordBatch(3, 0, 1, PARQUET, parquet([3])), RecordBatch(4, 0, 1, 0, wire("x"))))
    assert not begins_with_parquet(body(RecordBatch(0, 0, 1, 0, wire("x")), RecordBatch(3, 0, 1, PARQUET, b"")))
    assert not begins_with_parquet(body())


def test_a_row_group_is_decoded_bit_by_bit():
    count = 200_000
    batches = list(read_records(body(RecordBatch(0, 0, count, PARQUET, parquet(list(range(count))))), 0))
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == count


def test_small_batches_are_put_together_and_large_ones_are_not_copied():
    large = wire("z" * 200_000)
    content = body(
        *(RecordBatch(i, 0, 1, 0, wire("s")) for i in range(50)),
        RecordBatch(50, 0, 1, 0, large),
        RecordBatch(51, 0, 1, 0, large),
    )
    batches = list(read_records(content, 0))
    assert [batch.num_rows for batch in batches] == [50, 1, 1]
    for batch in batches[1:]:
        data = batch.column("value").buffers()[2]
        assert content.address <= data.address < content.address + content.size


GOOD = bytes(body(RecordBatch(0, 0, 1, 0, wire("v"))))


@pytest.mark.parametrize(
    "content",
    [
        GOOD[:20],
        GOOD[:-8],
        struct.pack("<qqiiq", 0, 0, 1, 0, -1) + GOOD[32:],
        struct.pack("<qqiiq", 0, 0, 2, 0, len(GOOD) - 32) + GOOD[32:],
        GOOD[:32] + bytes(len(GOOD) - 32),
    ],
    ids=["half a header", "cut", "negative length", "another count", "no message"],
)
def test_bytes_that_are_no_record_batch_are_refused(content):
    with pytest.raises(LogStoreError, match="not a log store"):
        list(read_records(pa.py_buffer(content), 0))
