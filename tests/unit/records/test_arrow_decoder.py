import re
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecordError, InvalidRequestError, RecordTooLargeError, RequestTooLargeError
from logstore.limits import ARROW_METADATA_BYTES_MAX, MIB, REQUEST_RECORDS_MAX, TIMESTAMP_MS_MAX
from logstore.records.decode import decode_arrow
from logstore.records.payload import decode_payload
from logstore.records.schema import WIRE_SCHEMA
from tests.support.examples import examples
from tests.support.records import Row, arrow_stream, rows, wire_batch, wire_rows

_BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]
_RECORDS = [Row(5, b"k", b"v", (("h", b"1"), ("i", None))), Row(None, None, None, None), Row(7, b"", b"x" * 50, ())]


def _decode(body: bytes, max_message_bytes: int = MIB, max_request_size: int = MIB):
    return decode_arrow(body, max_message_bytes=max_message_bytes, max_request_size=max_request_size)


def _columns(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _refused(body: bytes, match: str, error: type[Exception] = InvalidRequestError) -> None:
    with pytest.raises(error, match=match):
        _decode(body)


# ---- accepted streams ------------------------------------------------------------------------------------------------


@given(
    st.lists(rows, min_size=1, max_size=12),
    st.integers(0, 12),
    st.sampled_from([None, "lz4", "zstd"]),
)
@settings(deadline=None)
def test_wire_batches_come_in_as_they_are(records, cut, compression):
    batch = wire_batch(records)
    body = arrow_stream(batch.slice(0, cut), batch.slice(cut), compression=compression)
    decoded = _decode(body)
    assert decoded.batch.schema.equals(WIRE_SCHEMA)
    assert wire_rows(decoded.batch) == records
    assert (decoded.partitions, decoded.verbatim) == (None, None)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_one_wire_batch_is_kept_as_sent(compression):
    body = arrow_stream(wire_batch(_RECORDS), compression=compression)
    verbatim = _decode(body).verbatim
    assert verbatim.to_pybytes() in body
    assert wire_rows(decode_payload(verbatim)) == _RECORDS


@pytest.mark.parametrize("kind", _BYTES_TYPES, ids=str)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_type_of_bytes(kind, compression):
    values = pa.array(["v", None, "", "x" * 40], kind)
    decoded = _decode(arrow_stream(_columns(value=values, key=values), compression=compression))
    assert decoded.batch.column("value").to_pylist() == [b"v", None, b"", b"x" * 40]
    assert decoded.batch.column("key").to_pylist() == [b"v", None, b"", b"x" * 40]
    assert decoded.verbatim is None


@pytest.mark.parametrize(
    ("kind", "ticks"),
    [
        (pa.int64(), 1_999),
        (pa.timestamp("ms"), 1_999),
        (pa.timestamp("ms", "America/New_York"), 1_999),
        (pa.timestamp("us", "UTC"), 1_999_999),
        (pa.timestamp("ns"), 1_999_999_999),
    ],
    ids=str,
)
def test_timestamps_become_milliseconds(kind, ticks):
    times = pa.array([ticks, None, 0], pa.int64()).cast(kind)
    batch = _decode(arrow_stream(_columns(value=pa.nulls(3, pa.binary()), timestamp=times))).batch
    assert [row.timestamp for row in wire_rows(batch)] == [1_999, None, 0]


def test_seconds_become_milliseconds():
    times = pa.array([2, None], pa.timestamp("s"))
    batch = _decode(arrow_stream(_columns(value=pa.nulls(2, pa.binary()), timestamp=times))).batch
    assert [row.timestamp for row in wire_rows(batch)] == [2_000, None]


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
@pytest.mark.parametrize("kind", _BYTES_TYPES, ids=str)
def test_headers_of_other_types_and_orders(list_of, kind):
    element = pa.struct([("value", kind), ("key", pa.large_string())])
    headers = pa.array([[{"key": "k", "value": "v"}, {"key": "", "value": None}], None, []], list_of(element))
    batch = _decode(arrow_stream(_columns(value=pa.nulls(3, pa.binary()), headers=headers))).batch
    assert [row.headers for row in wire_rows(batch)] == [(("k", b"v"), ("", None)), None, ()]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()], ids=str)
def test_partitions(kind):
    values = pa.nulls(3, pa.binary())
    decoded = _decode(arrow_stream(_columns(value=values, partition=pa.array([3, None, 0], kind))))
    assert decoded.partitions.dtype == np.int32
    assert decoded.partitions.tolist() == [3, -1, 0]
    assert _decode(arrow_stream(_columns(value=values, partition=pa.nulls(3, kind)))).partitions is None


def test_a_stream_may_end_without_its_end_marker():
    body = arrow_stream(wire_batch(_RECORDS))
    assert body.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    assert wire_rows(_decode(body[:-8]).batch) == _RECORDS


# ---- refused streams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_bomb_is_refused_before_it_is_opened(compression):
    body = arrow_stream(_columns(value=pa.array([b"\0" * (128 * MIB)])), compression=compression)
    assert len(body) < 2 * MIB
    before = pa.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    with pytest.raises(RequestTooLargeError, match="declare more than"):
        decode_arrow(body, max_message_bytes=512 * MIB, max_request_size=64 * MIB)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()
    assert pa.default_memory_pool().bytes_allocated() == before


def test_the_declared_sizes_of_all_batches_count_together():
    batch = _columns(value=pa.array([b"\0" * 400_000]))
    assert _decode(arrow_stream(batch, batch, compression="zstd")).batch.num_rows == 2
    with pytest.raises(RequestTooLargeError):
        _decode(arrow_stream(batch, batch, batch, compression="zstd"))


def test_an_old_message_cannot_hide_its_compression():
    # V4 has a second, experimental place for the codec, in the message's custom metadata.
    body = arrow_stream(wire_batch(_RECORDS), metadata_version=pa.ipc.MetadataVersion.V4)
    _refused(body, "metadata version V5")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("lie", [0, 1, 29_999, 30_001, 2**40, 2**63 - 1, -1, -2, -(2**63)])
def test_a_lie_about_the_uncompressed_length_is_refused(compression, lie):
    body = arrow_stream(_columns(value=pa.array([b"\0" * 30_000])), compression=compression)
    # The last match is the length of the data; the offsets before it look the same.
    position = body.rindex(struct.pack("<q", 30_000))
    with pytest.raises((InvalidRequestError, RequestTooLargeError)):
        _decode(body[:position] + struct.pack("<q", lie) + body[position + 8 :])


def test_shared_views_count_as_often_as_they_are_used():
    data = pa.py_buffer(b"x" * 100_000)
    view = struct.pack("<i4sii", 100_000, b"xxxx", 0, 0)
    shared = pa.Array.from_buffers(pa.binary_view(), 10, [None, pa.py_buffer(view * 10), data])
    assert _decode(arrow_stream(_columns(value=shared))).batch.num_rows == 10
    more = pa.Array.from_buffers(pa.binary_view(), 11, [None, pa.py_buffer(view * 11), data])
    _refused(arrow_stream(_columns(value=more)), "when written out", RequestTooLargeError)


def test_the_view_of_a_null_is_never_read():
    # Arrow's cast reads it, and a negative length there caused a segmentation fault.
    views = struct.pack("<i12s", 1, b"v") + struct.pack("<iiii", -621, -1, 7, 2**31 - 1)
    column = pa.Array.from_buffers(pa.binary_view(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(views), pa.py_buffer(b"")])
    assert _decode(arrow_stream(_columns(value=column))).batch.column("value").to_pylist() == [b"v", None]


@pytest.mark.parametrize("count", [2**31 - 1, 2**40, -1])
def test_a_lie_about_variadic_buffers_is_refused(count):
    body = arrow_stream(_columns(value=pa.array([b"x" * 77], pa.binary_view())))
    vector = struct.pack("<iq", 1, 1)
    # The vector of column lengths looks the same.
    positions = [match.start() for match in re.finditer(re.escape(vector), body)]
    errors = []
    for position in positions:
        with pytest.raises(InvalidRequestError) as error:
            _decode(body[:position] + struct.pack("<iq", 1, count) + body[position + len(vector) :])
        errors.append(str(error.value))
    assert any("variadic" in error for error in errors)


@pytest.mark.parametrize("rows_declared", [2**40, 2**63 - 1, -1, 4])
def test_a_lie_about_the_number_of_rows_is_refused(rows_declared):
    body = arrow_stream(_columns(value=pa.array([b"abc"] * 3)))
    position = body.rindex(struct.pack("<qq", 3, 0))
    lie = body[:position] + struct.pack("<q", rows_declared) + body[position + 8 :]
    _refused(lie, "rows|lengths|malformed")


def test_more_rows_than_a_request_may_have():
    body = arrow_stream(_columns(value=pa.nulls(REQUEST_RECORDS_MAX + 1, pa.binary())))
    with pytest.raises(RequestTooLargeError, match="records"):
        decode_arrow(body, max_message_bytes=1, max_request_size=64 * MIB)


@pytest.mark.parametrize("offsets", [(0, 5, 3), (-4, 0, 2), (0, 2, 100), (0, 2**31 - 1, 3), (1, 2, 2**31 - 1)])
def test_bad_offsets_are_refused(offsets):
    body = arrow_stream(_columns(value=pa.array([b"ab", b"c"])))
    good = struct.pack("<iii", 0, 2, 3)
    assert body.count(good) == 1
    _refused(body.replace(good, struct.pack("<iii", *offsets)), "malformed")


def test_text_that_is_not_utf8_is_refused():
    _refused(arrow_stream(_columns(value=pa.array(["abc"]))).replace(b"abc", b"a\xff\xfe"), "malformed.*UTF8")


_VALUES = pa.nulls(1, pa.binary())


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        (_columns(key=_VALUES), "no column 'value'"),
        (_columns(value=_VALUES, Key=_VALUES), "column 'Key'"),
        (pa.RecordBatch.from_arrays([_VALUES, _VALUES], names=["value", "value"]), "two columns of one name"),
        (_columns(value=pa.nulls(1)), "type null: send it as binary"),
        (_columns(value=pa.array([1])), "type int64"),
        (_columns(value=pa.array([b"abc"], pa.binary(3))), "fixed_size_binary"),
        (_columns(value=pa.array([[b"a"]])), "type list"),
        (_columns(value=pa.array([{"a": 1}])), "type struct"),
        (_columns(value=pa.array(["a"]).dictionary_encode()), "dictionary"),
        (_columns(value=pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([b"a"]))), "run_end"),
        (_columns(value=pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1"]))), "json"),
        (_columns(value=_VALUES, timestamp=pa.array(["2020"])), "'timestamp' has type string"),
        (_columns(value=_VALUES, timestamp=pa.array([1], pa.int32())), "'timestamp' has type int32"),
        (_columns(value=_VALUES, partition=pa.array([1.0])), "'partition' has type double"),
        (_columns(value=_VALUES, headers=pa.array([["a"]])), "'headers' has type list"),
        (_columns(value=_VALUES, headers=pa.array([[("a", b"b")]], pa.map_(pa.string(), pa.binary()))), "type map"),
        (_columns(value=_VALUES, headers=pa.array([[]], pa.list_(pa.struct([("key", pa.string())])))), "'headers'"),
    ],
)
def test_other_columns_and_types_are_refused(batch, match):
    _refused(arrow_stream(batch), match)


def test_empty_streams_are_refused():
    _refused(b"", "body is empty")
    _refused(b"\xff\xff\xff\xff\0\0\0\0", "body is empty")
    _refused(arrow_stream(wire_batch([])), "records may not be empty")
    schema_only = arrow_stream(wire_batch(_RECORDS))[: -8 - len(wire_batch(_RECORDS).serialize())]
    _refused(schema_only, "records may not be empty")


def test_headers_without_keys_are_refused():
    _refused(
        arrow_stream(_columns(value=_VALUES, headers=pa.array([[{"value": b"v"}]], pa.list_(_nullable_header())))),
        "key is null",
        InvalidRecordError,
    )
    _refused(
        arrow_stream(_columns(value=_VALUES, headers=pa.array([[None]], pa.list_(_nullable_header())))),
        "header or its key is null",
        InvalidRecordError,
    )


def _nullable_header() -> pa.DataType:
    return pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    ("kind", "ticks"),
    [
        (pa.int64(), -1),
        (pa.timestamp("ms"), TIMESTAMP_MS_MAX + 1),
        (pa.timestamp("s"), 2**62),
        (pa.timestamp("us"), TIMESTAMP_MS_MAX * 1_000 + 1_000),
        (pa.timestamp("ns"), -1),
    ],
    ids=str,
)
def test_timestamps_out_of_range_are_refused(kind, ticks):
    times = pa.array([0, ticks], pa.int64()).cast(kind)
    _refused(arrow_stream(_columns(value=pa.nulls(2, pa.binary()), timestamp=times)), "timestamp", InvalidRecordError)


@pytest.mark.parametrize(("kind", "partition"), [(pa.int8(), -1), (pa.int64(), 2**31), (pa.uint64(), 2**64 - 1)])
def test_partitions_out_of_range_are_refused(kind, partition):
    body = arrow_stream(_columns(value=_VALUES, partition=pa.array([partition], kind)))
    _refused(body, "partition", InvalidRecordError)


def test_a_record_too_large_is_named():
    with pytest.raises(RecordTooLargeError, match=r"Record 2 .* has 50 bytes"):
        _decode(arrow_stream(wire_batch(_RECORDS)), max_message_bytes=49)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"hello, world", "stream format"),
        (b"ARROW1\0\0" + b"\0" * 50, "stream format"),
        (b"\xff\xff\xff\xff", "cut short"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", -8) + b"\0" * 64, "declares -8 bytes"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 8) + b"\0" * 64, "declares 2147483640 bytes"),
        (
            b"\xff\xff\xff\xff" + struct.pack("<i", ARROW_METADATA_BYTES_MAX + 8) + bytes(ARROW_METADATA_BYTES_MAX + 8),
            "metadata",
        ),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 64) + b"\xff" * 64, "outside of itself"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 64) + b"\0" * 64, "old format"),
    ],
)
def test_bad_frames_are_refused(body, match):
    _refused(body, match)


def test_bytes_after_the_end_are_refused():
    body = arrow_stream(wire_batch(_RECORDS))
    _refused(body + body, "body goes on after it")


def test_every_truncation_is_refused():
    body = arrow_stream(wire_batch(_RECORDS), compression="lz4")
    whole = {len(body) - 8}
    for length in range(len(body)):
        if length not in whole:
            with pytest.raises(InvalidRequestError):
                _decode(body[:length])


_STREAMS = [
    *(arrow_stream(wire_batch(_RECORDS), compression=compression) for compression in (None, "lz4", "zstd")),
    arrow_stream(
        _columns(
            value=pa.array([b"v", None, b"x" * 50], pa.binary_view()),
            key=pa.array(["k", None, "é" * 20], pa.string_view()),
            partition=pa.array([1, None, 2], pa.uint64()),
            headers=pa.array([[{"key": "k", "value": b"y" * 20}], None, []], pa.large_list(_nullable_header())),
        )
    ),
]
_NUMBERS = st.sampled_from([0, 1, 2, 8, 2**20, 2**31 - 1, 2**40, 2**63 - 1, -1, -2, -8, -(2**31), -(2**63)])
_MUTATIONS = st.one_of(
    st.tuples(st.just("<B"), st.integers(0, 255)),
    st.tuples(st.just("<i"), _NUMBERS.filter(lambda number: abs(number) < 2**31) | st.integers(-999, 999)),
    st.tuples(st.just("<q"), _NUMBERS | st.integers(-999, 999)),
)


@given(
    st.sampled_from(_STREAMS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), _MUTATIONS), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=examples(700))
def test_mutated_streams_give_records_or_the_named_errors(body, mutations):
    mutated = bytearray(body)
    for place, (layout, number) in mutations:
        size = struct.calcsize(layout)
        position = int(place * len(body)) // size * size
        if position + size <= len(body):
            struct.pack_into(layout, mutated, position, number)
    try:
        decoded = _decode(bytes(mutated))
    except (InvalidRequestError, RecordTooLargeError, RequestTooLargeError):
        return
    decoded.batch.validate(full=True)
    assert decoded.batch.schema.equals(WIRE_SCHEMA)
    assert len(wire_rows(decoded.batch)) == decoded.batch.num_rows > 0
    if decoded.verbatim is not None:
        assert decode_payload(decoded.verbatim).equals(decoded.batch)
