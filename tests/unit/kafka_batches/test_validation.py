"""The batches that are taken from a producer, and the reason of each refusal; both codecs say the same."""

import gzip
import struct
import tracemalloc

import pyarrow as pa
import pytest
import zstandard

from logstore import errors
from logstore.kafka_batches.compression import deflate
from logstore.kafka_batches.header import Compression
from logstore.kafka_batches.validation import find_null_keys, validate
from logstore.limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX
from tests.support.kafka_batches import (
    CODECS,
    client_batch,
    deflated,
    header_of,
    raw_batch,
    raw_records,
    sealed,
    sized,
    varint,
)
from tests.support.records import Row

pytestmark = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
_MIB = 1 << 20


def refused(batch: bytes, codec, error=errors.InvalidRecordBatchError, limit=_MIB, **options) -> str:
    with pytest.raises(error) as raised:
        validate(batch, inflated_bytes_max=limit, codec=codec, **options)
    assert type(raised.value) is error
    return str(raised.value)


def test_a_batch_is_described(codec):
    headers = sized(b"a") + sized(None) + sized(b"a") + sized(b"xy")
    last = {"key": sized(None), "header_count": varint(2), "headers": headers, "timestamp_delta": varint(5)}
    batch = raw_batch(raw_records(3, **last), 3, attributes=0x30, producer_id=7, producer_epoch=1, base_sequence=4)
    (found,) = validate(batch, inflated_bytes_max=_MIB, codec=codec)
    assert found == (0, len(batch), header_of(batch), 1005, 0, 1, 2, 3 * (16 + 4) + 2 + 3 + 2 * 8 + 2 + 2)
    assert found.header.is_transactional
    assert found.header.is_control
    assert not found.header.is_log_append_time
    assert found.header.compression is Compression.NONE


def test_several_batches_are_found_where_they_are(codec):
    one, two = raw_batch(raw_records(1), 1), raw_batch(raw_records(2, key=sized(None)), 2)
    found = validate(one + two, inflated_bytes_max=_MIB, codec=codec)
    assert [(batch.start, batch.end, batch.null_key_count) for batch in found] == [
        (0, len(one), 0),
        (len(one), len(one) + len(two), 1),
    ]
    assert validate(b"", inflated_bytes_max=_MIB, codec=codec) == []
    broken = raw_batch(raw_records(2, rest=b"!"), 2)
    assert refused(one + broken, codec) == "Record 1 of record batch 1 has bytes behind its last field"


def test_the_begin_of_a_batch_is_no_batch(codec):
    batch = raw_batch(raw_records(2), 2)
    for end in range(1, len(batch)):
        refused(batch[:end], codec, errors.CorruptRecordBatchError)
    refused(batch + batch[:30], codec, errors.CorruptRecordBatchError)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_a_length_that_lies_is_refused(codec, length: int):
    message = refused(raw_batch(raw_records(1), 1, length=length), codec, errors.CorruptRecordBatchError)
    assert str(length + 12) in message


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_another_magic_is_refused_by_its_number(codec, magic: int):
    batch = bytearray(raw_batch(raw_records(1), 1))
    batch[16] = magic
    assert f"magic {magic}:" in refused(sealed(bytes(batch)), codec)
    # Older formats have shorter headers.
    assert f"magic {magic}:" in refused(bytes(batch[:26]), codec)


def test_every_bit_behind_the_leader_epoch_counts(codec):
    batch = raw_batch(raw_records(2), 2)
    for bit in range(17 * 8, len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        refused(bytes(damaged), codec, errors.CorruptRecordBatchError)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"record_count": 0, "last_offset_delta": -1}, "has 0 records"),
        ({"record_count": -1}, "has -1 records"),
        ({"record_count": 1}, "1 records by its count, and 2"),
        ({"last_offset_delta": 5}, "2 records by its count, and 6"),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, "Record 2 of record batch 0 has a length"),
        ({"record_count": 3, "last_offset_delta": 2}, "Record 2 of record batch 0 has a length"),
        ({"record_count": 1, "last_offset_delta": 0}, "Record 0 of record batch 0 is the last one"),
        ({"producer_id": 1}, "epoch -1 and base sequence -1"),
        ({"producer_id": 1, "producer_epoch": 0}, "base sequence -1"),
        ({"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, "producer id -2"),
    ],
)
def test_a_header_that_lies_is_refused(codec, fields: dict, words: str):
    assert words in refused(raw_batch(raw_records(2), 2, **fields), codec)


_CUT = b"\x80"
_33_BITS, _65_BITS = b"\xff\xff\xff\xff\x1f", b"\xff" * 9 + b"\x02"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"length": varint(-1)}, "length"),
        ({"length": varint(0)}, "length"),
        ({"length": varint(2**31 - 1)}, "length"),
        ({"length": _33_BITS}, "length"),
        ({"length": b"\x80" * 5 + b"\x0e"}, "length"),
        ({"timestamp_delta": _65_BITS}, "timestamp delta"),
        ({"timestamp_delta": b"\x80" * 10 + b"\0"}, "timestamp delta"),
        ({"offset_delta": varint(0)}, "does not follow"),
        ({"offset_delta": varint(2)}, "does not follow"),
        ({"offset_delta": varint(-1)}, "does not follow"),
        ({"offset_delta": _33_BITS}, "offset delta that is cut or has more than 32 bits"),
        ({"key": varint(-2)}, "key whose length"),
        ({"key": varint(6)}, "key whose length"),
        ({"key": varint(2**31 - 1)}, "key whose length"),
        ({"key": varint(3) + b"abc", "value": b"", "header_count": _CUT}, "value whose length is cut"),
        ({"value": varint(-2)}, "value whose length"),
        ({"value": varint(3)}, "value whose length"),
        ({"header_count": varint(-1)}, "number of headers"),
        ({"header_count": _CUT}, "number of headers"),
        ({"header_count": varint(1)}, "header key whose length"),
        ({"header_count": varint(1), "headers": sized(None) + sized(b"")}, "header key whose length"),
        ({"header_count": varint(1), "headers": sized(b"a")}, "header value whose length"),
        ({"header_count": varint(1), "headers": sized(b"a") + varint(-2)}, "header value whose length"),
        ({"header_count": varint(1), "headers": sized(b"a\xff") + sized(b"")}, "not UTF-8"),
        ({"header_count": varint(1), "headers": sized(b"\xed\xa0\x80") + sized(b"")}, "not UTF-8"),
        ({"header_count": varint(1), "headers": sized(b"\xc0\xaf") + sized(b"")}, "not UTF-8"),
        ({"header_count": varint(1), "headers": sized(b"\xf4\x90\x80\x80") + sized(b"")}, "not UTF-8"),
        ({"header_count": varint(1), "headers": sized(b"\xe2\x82") + sized(b"")}, "not UTF-8"),
        ({"header_count": varint(1), "headers": 2 * (sized(b"a") + sized(b""))}, "bytes behind its last field"),
        ({"header_count": varint(HEADERS_PER_RECORD_MAX + 1)}, f"more than {HEADERS_PER_RECORD_MAX} headers"),
        ({"rest": b"\0"}, "bytes behind its last field"),
    ],
)
def test_a_broken_record_under_a_right_crc_is_refused(codec, fields: dict, words: str):
    message = refused(raw_batch(raw_records(2, **fields), 2), codec)
    assert message.startswith("Record 1 of record batch 0 ")
    assert words in message


def test_longer_forms_of_a_number_are_taken_as_kafka_takes_them(codec):
    last = {"timestamp_delta": varint(3, padding=9), "offset_delta": varint(1, padding=4), "key": b"\x82\0k"}
    (found,) = validate(raw_batch(raw_records(2, **last), 2), inflated_bytes_max=_MIB, codec=codec)
    assert found.max_timestamp == 1003


def test_a_record_may_have_the_most_headers(codec):
    header = sized("é".encode()) + sized(b"")
    fields = {"header_count": varint(HEADERS_PER_RECORD_MAX), "headers": header * HEADERS_PER_RECORD_MAX}
    (found,) = validate(raw_batch(raw_records(1, **fields), 1), inflated_bytes_max=_MIB, codec=codec)
    assert found.inflated_bytes > 10 * HEADERS_PER_RECORD_MAX


@pytest.mark.parametrize(
    ("base", "delta", "is_taken"),
    [
        (0, 0, True),
        (-1, 0, True),
        (-1, TIMESTAMP_MS_MAX + 1, True),
        (TIMESTAMP_MS_MAX, 0, True),
        (TIMESTAMP_MS_MAX, 1, False),
        (TIMESTAMP_MS_MAX, -TIMESTAMP_MS_MAX - 1, True),
        (0, -2, False),
        (2**63 - 1, 1, False),
        (2**63 - 1, -(2**63) + 1, True),
        (-(2**63), -1, False),
        (-(2**63), 2**63 - 1, True),
        (-(2**63), 2**63 - 2, False),
        (2**63 - 1, 2**63 - 1, False),
        (-(2**63), -(2**63), False),
    ],
)
def test_timestamps_are_what_a_table_holds(codec, base: int, delta: int, is_taken: bool):
    batch = raw_batch(raw_records(1, timestamp_delta=varint(delta)), 1, base_timestamp=base)
    if not is_taken:
        assert "timestamp outside 0 to" in refused(batch, codec, errors.InvalidTimestampError)
    else:
        (found,) = validate(batch, inflated_bytes_max=_MIB, codec=codec)
        assert (found.max_timestamp, found.untimed_count) == (base + delta, int(base + delta == -1))
    (found,) = validate(batch, inflated_bytes_max=_MIB, codec=codec, log_append_time=True)
    assert (found.max_timestamp, found.untimed_count) == (-1, 1)


def test_the_append_time_of_a_batch_is_a_time(codec):
    good = raw_batch(raw_records(2), 2, attributes=8, base_timestamp=-5, max_timestamp=77)
    (found,) = validate(good, inflated_bytes_max=_MIB, codec=codec)
    assert (found.max_timestamp, found.untimed_count) == (77, 0)
    bad = raw_batch(raw_records(2), 2, attributes=8, max_timestamp=TIMESTAMP_MS_MAX + 1)
    refused(bad, codec, errors.InvalidTimestampError)


@pytest.mark.parametrize("kind", [5, 6, 7])
def test_an_unknown_compression_is_refused(codec, kind: int):
    batch = raw_batch(raw_records(1), 1, attributes=kind)
    assert f"type {kind}" in refused(batch, codec, errors.UnsupportedCompressionTypeError)


@pytest.mark.parametrize("compression", list(Compression))
def test_inflated_records_have_a_limit_together(codec, compression: Compression):
    records = raw_records(2, value=sized(bytes(100_000)))
    batch = raw_batch(bytes(deflate(compression, pa.py_buffer(records))), 2, compression=compression)
    size = len(records)
    assert len(validate(batch, inflated_bytes_max=size, codec=codec)) == 1
    assert len(validate(batch + batch, inflated_bytes_max=2 * size, codec=codec)) == 2
    for given, limit in ((batch, size - 1), (batch + batch, 2 * size - 1), (batch, 0)):
        refused(given, codec, errors.RecordBatchTooLargeError, limit)


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_data_that_is_not_compressed_is_refused(codec, compression: Compression):
    whole = bytes(deflate(compression, pa.py_buffer(raw_records(50, value=sized(bytes(range(200)) * 500)))))
    for stored in (b"", b"x", b"garbage" * 20, whole[:-1], whole[: len(whole) // 2], whole[:10], whole + b"!"):
        refused(raw_batch(stored, 50, compression=compression), codec)


def test_zstd_and_gzip_of_other_libraries(codec):
    records = raw_records(3, value=sized(b"v" * 5_000))
    for compression in (Compression.GZIP, Compression.ZSTD):
        batch = raw_batch(deflated(compression, records), 3, compression=compression)
        assert len(validate(batch, inflated_bytes_max=_MIB, codec=codec)) == 1
    # Kafka's level 22 makes such a window.
    parameters = zstandard.ZstdCompressionParameters(compression_level=1, window_log=27, write_content_size=False)
    far = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stored = far.compress(records) + far.flush()
    assert zstandard.get_frame_parameters(stored).window_size == 128 * _MIB
    assert len(validate(raw_batch(stored, 3, compression=Compression.ZSTD), inflated_bytes_max=_MIB, codec=codec)) == 1


def test_a_bomb_takes_no_more_memory_than_its_limit(codec):
    zeros = bytes(8 * _MIB)
    bombs = {
        Compression.GZIP: gzip.compress(zeros),
        Compression.SNAPPY: bytes(deflate(Compression.SNAPPY, pa.py_buffer(zeros))),
        Compression.LZ4: bytes(deflate(Compression.LZ4, pa.py_buffer(zeros))),
        Compression.ZSTD: zstandard.ZstdCompressor(write_content_size=False).compress(zeros),
    }
    for compression, stored in bombs.items():
        batch = raw_batch(stored, 1, compression=compression)
        tracemalloc.start()
        try:
            message = refused(batch, codec, errors.RecordBatchTooLargeError, _MIB)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert "send them in smaller batches" in message
        assert peak < 1.5 * _MIB


def test_blocks_that_kafkas_clients_do_not_read_are_refused(codec):
    linked = pa.Codec("lz4").compress(raw_records(1, value=sized(bytes(200_000))), asbytes=True)
    message = refused(raw_batch(linked, 1, compression=Compression.LZ4), codec)
    assert "depend on each other" in message


def test_snappy_in_tiny_blocks_is_refused(codec):
    block = pa.Codec("snappy").compress(b"a", asbytes=True)
    stored = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + (len(block).to_bytes(4, "big") + block) * 10_000
    assert "on average" in refused(raw_batch(stored, 1, compression=Compression.SNAPPY), codec)


def test_snappy_is_taken_raw_and_in_blocks(codec):
    records = raw_records(40, value=sized(bytes(3_000)))
    snappy = pa.Codec("snappy")
    blocks = [records[at : at + 1_024] for at in range(0, len(records), 1_024)]
    framed = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2
    for block in blocks:
        stored = snappy.compress(block, asbytes=True)
        framed += len(stored).to_bytes(4, "big") + stored
    for stored in (snappy.compress(records, asbytes=True), framed):
        batch = raw_batch(stored, 40, compression=Compression.SNAPPY)
        assert len(validate(batch, inflated_bytes_max=len(records), codec=codec)) == 1
        refused(batch, codec, errors.RecordBatchTooLargeError, len(records) - 1)


def test_any_buffer_is_taken(codec):
    batch = raw_batch(raw_records(2, value=sized(b"v" * 200)), 2)
    expected = validate(batch, inflated_bytes_max=_MIB, codec=codec)
    for given in (bytearray(batch), memoryview(b"!" + batch)[1:], pa.py_buffer(batch)):
        assert validate(given, inflated_bytes_max=_MIB, codec=codec) == expected


def test_records_without_a_key_are_found(codec):
    rows = [Row(5, None if number % 3 == 1 else b"k", b"v", None) for number in range(10)]
    for compression in Compression:
        # These timestamps are not allowed, but append times replace them.
        batch = client_batch(rows, compression=compression)
        batch = sealed(batch[:27] + struct.pack(">q", 2**62) + batch[35:])
        (valid,) = validate(batch, inflated_bytes_max=_MIB, log_append_time=True, codec=codec)
        for count, found in ((2, [1, 4]), (3, [1, 4, 7]), (9, [1, 4, 7])):
            assert find_null_keys(batch, valid, count, codec) == found


def test_a_record_that_alone_is_wrong_is_named(codec):
    wrong = {
        "a timestamp that no table has": {"timestamp_delta": varint(-2_000)},
        "a header's key that is no text": {"header_count": varint(1), "headers": sized(b"\xff") + sized(None)},
        "too many headers": {"header_count": varint(HEADERS_PER_RECORD_MAX + 1)},
    }
    for fields in wrong.values():
        with pytest.raises(errors.InvalidRecordBatchError) as raised:
            validate(raw_batch(raw_records(4, **fields), 4), inflated_bytes_max=_MIB, codec=codec)
        assert raised.value.refused is not None
        assert raised.value.refused.numbers == (3,)
        assert str(raised.value).endswith(raised.value.refused.message.removeprefix("The record"))
    with pytest.raises(errors.InvalidRecordBatchError) as raised:
        validate(raw_batch(raw_records(4, rest=b"x"), 4), inflated_bytes_max=_MIB, codec=codec)
    assert raised.value.refused is None
