"""Requests depend only on the rows and their order, not on the batches in which Spark sends them."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from logstore.errors import InvalidRecordError
from logstore.limits import MIB
from logstore.records.arrow_decoder import decode_arrow
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA
from logstore.spark.sink import requests
from logstore.spark.sink.columns import SinkColumns, record_bytes
from logstore.spark.sink.requests import Request, Requests

#: Spark uses these names of elements, and this order of columns.
SPARK_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
SPARK_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("headers", SPARK_HEADERS),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("key", pa.string()),
        ("timestamp", pa.timestamp("us", "Europe/Berlin")),
        ("offset", pa.int64()),
    ]
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "partition": st.none() | st.integers(0, 3),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=9)}),
                max_size=2,
            ),
            "value": st.none() | st.binary(max_size=40),
            "topic": st.sampled_from("abc"),
            "key": st.none() | st.text(max_size=5),
            "timestamp": st.none() | st.integers(0, 10**15),
            "offset": st.just(7),
        }
    ),
    max_size=40,
)


def columns(topic: str = "") -> SinkColumns:
    return SinkColumns.of(from_arrow_schema(SPARK_SCHEMA), topic)


def made(batches: list[pa.RecordBatch], topic: str = "", max_bytes: int = 200) -> list[Request]:
    found = list(Requests(columns(topic), topic, max_bytes=max_bytes, codec=None).of(batches))
    return sorted(found, key=lambda request: (request.topic, request.number))


def cut(batch: pa.RecordBatch, ends: list[int]) -> list[pa.RecordBatch]:
    """Cut the rows into batches that have their own buffers, as Spark's batches do."""
    places = [0, *sorted(min(end, batch.num_rows) for end in ends), batch.num_rows]
    slices = [batch.slice(a, b - a) for a, b in pairwise(places)]
    return [pa.ipc.read_record_batch(part.serialize(), batch.schema) for part in slices]


@given(rows, st.lists(st.integers(0, 40), max_size=5))
def test_other_batches_of_the_same_rows_make_the_same_requests(rows, ends):
    batch = pa.RecordBatch.from_pylist(rows, SPARK_SCHEMA)
    whole = made([batch])
    again = made(cut(batch, ends))
    assert [(r.topic, r.number, r.records, bytes(r.body)) for r in again] == [
        (r.topic, r.number, r.records, bytes(r.body)) for r in whole
    ]
    for topic in "abc":
        mine = [request for request in whole if request.topic == topic]
        assert [request.number for request in mine] == list(range(len(mine)))
        # The store reads from the requests the rows of the topic, in their order.
        decoded = [decode_arrow(bytes(r.body), max_message_bytes=MIB, max_request_size=MIB) for r in mine]
        found = [row for each in decoded for row in each.batch.to_pylist()]
        assert [(row["key"], row["value"]) for row in found] == [
            (None if row["key"] is None else row["key"].encode(), row["value"]) for row in rows if row["topic"] == topic
        ]
        for request, each in zip(mine, decoded, strict=True):
            assert request.records == each.batch.num_rows
            assert request.records == 1 or int(record_bytes(each.batch).sum()) <= 200


def test_a_record_has_all_its_fields():
    rows = [
        {"partition": 2, "value": b"v", "key": "k", "headers": [{"key": "h", "value": None}], "timestamp": 1_234_567},
        {"partition": None, "value": None, "key": None, "headers": None, "timestamp": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, SPARK_SCHEMA)
    (request,) = made([batch], "t")
    decoded = decode_arrow(bytes(request.body), max_message_bytes=MIB, max_request_size=MIB)
    assert decoded.partitions.tolist() == [2, -1]
    first, second = decoded.batch.to_pylist()
    assert first["timestamp"].timestamp() == 1.234
    assert (first["key"], first["value"], first["headers"]) == (b"k", b"v", [{"key": "h", "value": None}])
    assert set(second.values()) == {None}


def test_columns_of_nulls_are_left_out_so_that_the_store_keeps_the_stream_as_it_is():
    batch = pa.RecordBatch.from_pylist([{"value": b"v", "topic": "t"}] * 3, SPARK_SCHEMA)
    (request,) = made([batch])
    assert pa.ipc.read_schema(pa.py_buffer(request.body)) == WIRE_SCHEMA
    assert pa.ipc.open_stream(request.body).read_all().column("headers").type == HEADERS_TYPE


def test_the_open_requests_of_many_topics_are_bounded(monkeypatch):
    monkeypatch.setattr(requests, "_OPEN_BYTES_MAX", 1_000)
    many = Requests(columns(), "", max_bytes=500, codec=None)
    sizes = []

    def batches():
        for n in range(50):
            yield pa.RecordBatch.from_pylist([{"value": b"v" * 60, "topic": f"t{n}"}] * 2, SPARK_SCHEMA)
            sizes.append(sum(each.size for each in many._open.values()))

    assert sum(request.records for request in many.of(batches())) == 100
    assert max(sizes) <= 1_000


def test_rows_that_are_no_records():
    null_topic = pa.RecordBatch.from_pylist([{"value": b"v", "topic": None}], SPARK_SCHEMA)
    with pytest.raises(InvalidRecordError, match=r"null topic present in the data\. Use the topic option"):
        made([null_topic])
    assert made([null_topic], "t")[0].records == 1
    for headers in ([None], [{"key": None, "value": b""}]):
        batch = pa.RecordBatch.from_pylist([{"value": b"v", "topic": "t", "headers": headers}], SPARK_SCHEMA)
        with pytest.raises(InvalidRecordError, match="A header or its key is null"):
            made([batch])
