"""Batches become columns and batches again: both codecs agree with each other, with plain rows and another library."""

from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from logstore import errors
from logstore.kafka_batches.decoding import decode_batches
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import HEADER_BYTES, Compression, placed, with_max_timestamp
from logstore.kafka_batches.validation import validate
from logstore.limits import TIMESTAMP_MS_MAX
from logstore.records.batch_identity import BatchIdentity
from logstore.records.log_batches import Origin, with_origins
from logstore.records.schema import WIRE_SCHEMA
from tests.support.kafka_batches import (
    CODECS,
    header_of,
    kafka_rows,
    log_batch,
    raw_batch,
    raw_records,
    sized,
    varint,
)
from tests.support.records import Row, wire_rows

_MIB = 1 << 20
_ROWS = st.lists(kafka_rows, min_size=1, max_size=20)
_COMPRESSIONS = st.sampled_from(list(Compression))


def decoded(*batches, codec) -> tuple[list[Row], list[int]]:
    found = decode_batches(batches, inflated_bytes_max=16 * _MIB, codec=codec)
    found.records.validate(full=True)
    assert found.records.schema.equals(WIRE_SCHEMA)
    assert found.offset_deltas.dtype == np.int32
    return wire_rows(found.records), found.offset_deltas.tolist()


def plain(rows: list[Row]) -> list[Row]:
    """Return the rows as Kafka stores them, where an empty list of headers is no list."""
    return [replace(row, headers=row.headers or None) for row in rows]


# ---- the two codecs --------------------------------------------------------------------------------------------------


@given(_ROWS, st.lists(st.integers(1, 2**20), min_size=20, max_size=20), st.integers(0, 2**62), _COMPRESSIONS)
def test_both_codecs_write_and_read_the_same(rows, gaps, base_offset, compression):
    offsets = [base_offset + int(gap) for gap in np.cumsum([0, *gaps[1 : len(rows)]])]
    records = log_batch(rows, offsets)
    written = {
        name: bytes(encode_batch(records, leader_epoch=3, compression=compression, codec=codec))
        for name, codec in CODECS.items()
    }
    assert len(set(written.values())) == 1
    batch = written["numpy"]
    header = header_of(batch)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (offsets[0], offsets[-1], 3)
    assert header.max_timestamp == max(row.timestamp for row in rows)
    assert (header.compression, header.record_count, header.producer_id) == (compression, len(rows), -1)
    for codec in CODECS.values():
        assert decoded(batch, codec=codec) == (plain(rows), [offset - offsets[0] for offset in offsets])


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(before=_ROWS, rows=_ROWS, behind=_ROWS)
def test_a_slice_is_encoded_as_its_rows(codec, before, rows, behind):
    every = [*before, *rows, *behind]
    part = log_batch(every, range(len(every))).slice(len(before), len(rows))
    whole = log_batch(rows, range(len(before), len(before) + len(rows)))
    assert bytes(encode_batch(part, leader_epoch=0, codec=codec)) == bytes(
        encode_batch(whole, leader_epoch=0, codec=codec)
    )


@given(st.lists(st.tuples(st.lists(kafka_rows, max_size=6), _COMPRESSIONS), min_size=1, max_size=6))
def test_many_batches_become_one_of_columns(parts):
    batches = [
        encode_batch(
            log_batch(rows, range(len(rows))), leader_epoch=0, base_offset=0, end_offset=10, compression=compression
        )
        for rows, compression in parts
    ]
    expected = [row for rows, _ in parts for row in plain(rows)], [n for rows, _ in parts for n in range(len(rows))]
    for codec in CODECS.values():
        assert decoded(*batches, codec=codec) == expected


# ---- another library -------------------------------------------------------------------------------------------------


def others_rows(batch: bytes) -> list[tuple[int, Row]]:
    judge = DefaultRecordBatch(bytearray(batch))
    assert judge.validate_crc()
    return [
        (
            record.offset,
            Row(
                record.timestamp, record.key, record.value, tuple((key, value) for key, value in record.headers) or None
            ),
        )
        for record in judge
    ]


@given(_ROWS, st.integers(0, 2**40), _COMPRESSIONS, st.booleans())
def test_another_library_reads_what_is_written(rows, base_offset, compression, is_producers):
    identity = BatchIdentity(77, 3, 2**31 - 1) if is_producers else BatchIdentity(5, -9, 4)
    records = log_batch(rows, range(base_offset, base_offset + len(rows)))
    for codec in CODECS.values():
        batch = bytes(encode_batch(records, leader_epoch=1, identity=identity, compression=compression, codec=codec))
        assert others_rows(batch) == list(enumerate(plain(rows), base_offset))
        judge = DefaultRecordBatch(bytearray(batch))
        assert (judge.producer_id, judge.producer_epoch, judge.base_sequence) == (
            (77, 3, 2**31 - 1) if is_producers else (-1, -1, -1)
        )
        assert (judge.base_offset, judge.next_offset) == (base_offset, base_offset + len(rows))


@given(_ROWS, _COMPRESSIONS)
def test_batches_of_another_library_are_read(rows, compression):
    builder = DefaultRecordBatchBuilder(2, int(compression), 0, -1, -1, -1, 64 * _MIB)
    for number, row in enumerate(rows):
        builder.append(number, row.timestamp, row.key, row.value, list(row.headers or ()))
    batch = bytes(builder.build())
    for codec in CODECS.values():
        (found,) = validate(batch, inflated_bytes_max=16 * _MIB, codec=codec)
        assert found.max_timestamp == max(row.timestamp for row in rows)
        assert found.null_key_count == sum(row.key is None for row in rows)
        assert found.first_null_key == next((at for at, row in enumerate(rows) if row.key is None), -1)
        assert decoded(batch, codec=codec) == (plain(rows), list(range(len(rows))))


# ---- what a fetch and an append change -------------------------------------------------------------------------------


def test_a_batch_gets_its_place_without_another_crc():
    batch = raw_batch(raw_records(3), 3)
    front, rest = placed(batch, 2**40, 9)
    assert (len(front), rest.obj is batch) == (16, True)
    moved = front + bytes(rest)
    (found,) = validate(moved, inflated_bytes_max=_MIB)
    assert found.header == header_of(batch)._replace(base_offset=2**40, leader_epoch=9)
    assert [offset for offset, _ in others_rows(moved)] == [2**40, 2**40 + 1, 2**40 + 2]
    assert b"".join(placed(pa.py_buffer(batch), 2**40, 9)) == moved


@pytest.mark.parametrize("compression", list(Compression))
def test_the_append_time_takes_the_place_of_all_times(compression: Compression):
    rows = [Row(number, b"k", bytes(500), None) for number in range(50)]
    batch = bytes(encode_batch(log_batch(rows, range(50)), leader_epoch=0, compression=compression))
    stamped = with_max_timestamp(batch, 1_234, log_append_time=True)
    assert [row.timestamp for _, row in others_rows(stamped)] == [1_234] * 50
    assert DefaultRecordBatch(bytearray(stamped)).timestamp_type == 1
    for codec in CODECS.values():
        assert {row.timestamp for row in decoded(stamped, codec=codec)[0]} == {1_234}
    assert header_of(stamped).compression is compression
    again = with_max_timestamp(pa.py_buffer(stamped), 49, log_append_time=False)
    assert again == batch


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_an_empty_batch_takes_a_consumer_over_a_gap(codec):
    nothing = log_batch([], [])
    batch = bytes(
        encode_batch(
            nothing, leader_epoch=4, base_offset=10, end_offset=1_000, compression=Compression.ZSTD, codec=codec
        )
    )
    judge = DefaultRecordBatch(bytearray(batch))
    assert (len(batch), judge.validate_crc(), list(judge), judge.next_offset) == (HEADER_BYTES, True, [], 1_000)
    header = header_of(batch)
    assert (header.base_offset, header.last_offset, header.record_count, header.compression) == (10, 999, 0, 0)
    assert decoded(batch, codec=codec) == ([], [])
    with pytest.raises(errors.InvalidRecordBatchError, match="0 records"):
        validate(batch, inflated_bytes_max=_MIB, codec=codec)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_batch_may_begin_before_its_records_and_end_behind_them(codec):
    rows = [Row(5, None, b"a", None), Row(6, None, b"b", None)]
    batch = bytes(encode_batch(log_batch(rows, [12, 17]), leader_epoch=0, base_offset=10, end_offset=20, codec=codec))
    assert others_rows(batch) == [(12, rows[0]), (17, rows[1])]
    assert DefaultRecordBatch(bytearray(batch)).next_offset == 20
    assert decoded(batch, codec=codec) == (rows, [2, 7])


def test_bits_of_the_attributes():
    records = log_batch([Row(5, b"\0\0\0\1", b"\0\0\0\0\0\0", None)], [3])
    header = header_of(
        bytes(encode_batch(records, leader_epoch=0, log_append_time=True, transactional=True, control=True))
    )
    assert (header.is_log_append_time, header.is_transactional, header.is_control) == (True, True, True)
    judge = DefaultRecordBatch(bytearray(encode_batch(records, leader_epoch=0, transactional=True, control=True)))
    assert (judge.timestamp_type, judge.is_transactional, judge.is_control_batch) == (0, True, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_offset": 11}, r"outside of \[11, 13\)"),
        ({"end_offset": 12}, r"outside of \[10, 12\)"),
        ({"end_offset": 10 + 2**31 + 1}, "cannot stand for"),
        ({"log_append_time": True}, "one timestamp for all"),
    ],
)
def test_records_that_do_not_fit_the_arguments_are_refused(options: dict, words: str):
    records = log_batch([Row(5, None, None, None), Row(6, None, None, None)], [10, 12])
    with pytest.raises(ValueError, match=words):
        encode_batch(records, leader_epoch=0, **options)
    with pytest.raises(ValueError, match="needs the offsets"):
        encode_batch(records.slice(0, 0), leader_epoch=0, base_offset=3)


def test_the_most_offsets_that_a_batch_can_stand_for():
    records = log_batch([Row(0, None, None, None), Row(TIMESTAMP_MS_MAX, None, None, None)], [0, 2**31 - 1])
    for codec in CODECS.values():
        batch = encode_batch(records, leader_epoch=0, codec=codec)
        assert decoded(batch, codec=codec)[1] == [0, 2**31 - 1]


# ---- from and to the rest of the store -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_records_without_a_time_get_that_of_the_append(codec):
    batch = raw_batch(raw_records(3, timestamp_delta=varint(-1_001)), 3)
    records = decode_batches([batch], inflated_bytes_max=_MIB, codec=codec).records
    assert records.column("timestamp").null_count == 1
    log = with_origins(records, [Origin(3, 50, 999, False)])
    assert log.column("timestamp").cast(pa.int64()).to_pylist() == [1_000, 1_000, 999]
    assert log.column("offset").to_pylist() == [50, 51, 52]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_stored_batch_that_is_none_is_refused(codec):
    batch = raw_batch(raw_records(2), 2)
    broken = raw_batch(raw_records(2, rest=b"!"), 2)
    for given_batches in ([batch + batch], [raw_batch(b"", -1)], [batch, broken], [raw_batch(b"!", 0)]):
        with pytest.raises(errors.InvalidRecordBatchError):
            decode_batches(given_batches, inflated_bytes_max=_MIB, codec=codec)
    with pytest.raises(errors.RecordBatchTooLargeError):
        decode_batches([batch, batch], inflated_bytes_max=2 * (len(batch) - HEADER_BYTES) - 1, codec=codec)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_null_keys_of_headers_that_another_writer_stored_become_empty(codec):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[(None, b"x"), ("b", None)]], kind)
    records = log_batch([Row(5, None, b"v", (("a", b""),))], [0])
    fields = [records.schema.field(at) if at < 4 else pa.field("headers", kind) for at in range(5)]
    foreign = pa.RecordBatch.from_arrays([*records.columns[:4], headers], schema=pa.schema(fields))
    rows, _ = decoded(encode_batch(foreign, leader_epoch=0, codec=codec), codec=codec)
    assert rows[0].headers == (("", b"x"), ("b", None))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_columns_have_no_more_memory_than_the_check_reported(codec):
    random = Random(5)
    for headers in (b"", sized(b"a") + sized(b"bc")):
        fields = {"header_count": varint(bool(headers)), "headers": headers, "value": sized(random.randbytes(50))}
        records = b"".join(raw_records(1, **fields) for _ in range(1))
        batch = raw_batch(records, 1)
        (found,) = validate(batch, inflated_bytes_max=_MIB, codec=codec)
        columns = decode_batches([batch], inflated_bytes_max=_MIB, codec=codec).records
        assert abs(columns.nbytes - found.inflated_bytes) <= 24
