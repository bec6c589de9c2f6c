"""Batches stay as their producer made them: on the way in, in the journal, and on the way to a reader."""

import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from deltalake import DeltaTable

from logstore.broker.context import INTERNAL
from logstore.broker.produce.batches import TopicBatches
from logstore.protocol.fetch_response import PartitionData, read_fetch_response
from logstore.protocol.record_batch import LOG_APPEND_TIME, PARQUET, RecordBatch, read_batches
from logstore.records.payload import decode_payload
from logstore.records.schema import WIRE_SCHEMA
from tests.api.api_client import ARROW, BINARY_V2, assert_error
from tests.support.records import Row, wire_batch
from tests.support.running_broker import CLIENT
from tests.support.table_paths import path_of

pytestmark = pytest.mark.anyio


def stream(*parts: tuple[bytes | None, pa.RecordBatch], compression: str | None = None) -> bytes:
    """Return a stream of batches, each with the partition that its metadata names."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, parts[0][1].schema, options=options) as writer:
        for partition, batch in parts:
            writer.write_batch(batch, custom_metadata=None if partition is None else {b"partition": partition})
    return sink.getvalue().to_pybytes()


def values(*texts: str) -> pa.RecordBatch:
    return wire_batch([Row(None, None, text.encode(), None) for text in texts])


async def fetched(api, topic: str, partition: int = 0, *, offset: int, max_bytes: int = 64 << 20) -> PartitionData:
    """Return the batches of one partition; none if the answer has no news."""
    asked = {"topic": topic, "partition": partition, "offset": offset}
    body = {"partitions": [asked], "max_bytes": max_bytes, "max_partition_bytes": max_bytes, "max_wait_ms": 0}
    answer = await api.post("/fetch", json=body)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    responses = list(read_fetch_response(pa.py_buffer(answer.content)))
    return responses[0] if responses else PartitionData(0, 0, -1, offset, offset, offset, (pa.py_buffer(b""),))


def batches(response: PartitionData) -> list[RecordBatch]:
    assert response.error is None
    return list(read_batches(response.content[0]))


def offsets(response: PartitionData, first_offset: int = 0) -> list[int]:
    return [offset for batch in response.records(first_offset) for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
async def test_a_batch_of_many_partitions_is_stored_as_sent_in_each(api, compression):
    await api.create_topic("t", partitions=3)
    sent = [(b"2", values("a", "b" * 500)), (b"0", values("c")), (b"2", values("d"))]
    body = stream(*sent, compression=compression)
    answer = await api.post("/topics/t", content=body, headers={"Content-Type": ARROW})
    assert answer.json()["ranges"] == [
        {"partition": 2, "base_offset": 0, "count": 2},
        {"partition": 0, "base_offset": 0, "count": 1},
        {"partition": 2, "base_offset": 2, "count": 1},
    ]
    read = []
    for partition in (2, 0, 1):
        for batch in batches(await fetched(api, "t", partition, offset=0)):
            assert bytes(batch.payload) in body, "not what was sent"
            assert batch.flags == 0
            rows = decode_payload(batch.payload)
            assert rows.num_rows == batch.record_count
            read.append((partition, batch.base_offset, rows.column("value").to_pylist()))
    assert read == [(2, 0, [b"a", b"b" * 500]), (2, 2, [b"d"]), (0, 0, [b"c"])]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("", stream((b"0", values("a")), (None, values("b"))), 422, "names partition None"),
        ("", stream((b"-1", values("a"))), 422, "names partition b'-1'"),
        ("", stream((b"99999999999", values("a"))), 422, "names partition"),
        ("/partitions/1", stream((b"1", values("a")), (b"0", values("b"))), 422, "leave it out of the metadata"),
        ("", stream((b"0", pa.record_batch({"value": [b"a"], "partition": [0]}))), 422, "in a column and in"),
        ("", stream((b"0", values("a")), (b"1", values())), 422, "records may not be empty"),
        ("", stream((b"0", values("a")), (b"1", values("b" * 2000))), 413, "Record 1 of the request has 2000 bytes"),
    ],
)
async def test_nothing_is_stored_of_a_stream_with_one_wrong_batch(api, path, body, status, says):
    await api.create_topic("t", partitions=2, max_message_bytes="1000")
    answer = await api.post(f"/topics/t{path}", content=body, headers={"Content-Type": ARROW})
    assert_error(answer, status)
    assert says in answer.json()["message"]
    assert api.end_offsets("t") == [0, 0]


async def test_a_batch_for_a_partition_that_is_not_there_keeps_no_other_from_being_stored(api):
    await api.create_topic("t", partitions=2)
    body = stream((b"0", values("a")), (b"2", values("b")))
    answer = await api.post("/topics/t", content=body, headers={"Content-Type": ARROW})
    told = [(found["partition"], found["base_offset"], found["error_code"]) for found in answer.json()["ranges"]]
    assert (answer.status_code, told) == (200, [(0, 0, None), (2, None, 40402)])
    assert api.end_offsets("t") == [1, 0]


async def test_keys_are_asked_for_in_every_batch_of_a_compacted_topic(api):
    await api.create_topic("t", partitions=2, cleanup_policy="compact")
    keyed = wire_batch([Row(None, b"k", b"v", None)] * 2)
    body = stream((b"0", keyed), (b"1", values("a")))
    answer = await api.post("/topics/t", content=body, headers={"Content-Type": ARROW})
    assert_error(answer, 422)
    assert "Record 2 has no key" in answer.json()["message"]
    assert api.end_offsets("t") == [0, 0]


async def test_batches_of_the_tail_come_whole(api):
    await api.create_topic("t", message_timestamp_type="LogAppendTime")
    await api.produce("t", [3, 4, 5])
    await api.produce("t", [6])
    first, second = batches(await fetched(api, "t", offset=0))
    assert (first.base_offset, first.record_count, first.flags) == (0, 3, LOG_APPEND_TIME)
    assert (second.base_offset, second.record_count, second.flags) == (3, 1, LOG_APPEND_TIME)
    assert first.append_time_ms <= second.append_time_ms
    assert decode_payload(first.payload).column("value").to_pylist() == [b"3", b"4", b"5"]

    from_inside = await fetched(api, "t", offset=1)
    assert [(batch.base_offset, batch.record_count) for batch in batches(from_inside)] == [(0, 3), (3, 1)]
    assert offsets(from_inside, 1) == [1, 2, 3]
    one_at_a_time = await fetched(api, "t", offset=0, max_bytes=1)
    assert ([batch.base_offset for batch in batches(one_at_a_time)], one_at_a_time.next_offset) == ([0], 3)
    at_the_end = await fetched(api, "t", offset=4)
    assert (batches(at_the_end), at_the_end.next_offset) == ([], 4)


async def test_history_comes_as_whole_row_groups_wherever_reading_begins(api):
    await api.create_topic("t")
    for first in (0, 3):
        await api.produce("t", [first, first + 1, first + 2])
        assert (await api.post("/topics/t/roll")).status_code == 200
    await api.produce("t", [6])

    def seen(response: PartitionData) -> list[tuple[int, int, int]]:
        return [(batch.base_offset, batch.record_count, batch.flags) for batch in batches(response)]

    whole = await fetched(api, "t", offset=0, max_bytes=10_000)
    assert (seen(whole), whole.next_offset) == ([(0, 3, PARQUET), (3, 3, PARQUET), (6, 1, 0)], 7)
    read = pq.read_table(pa.BufferReader(batches(whole)[1].payload))
    assert read.column("offset").to_pylist() == [3, 4, 5]
    assert read.column("value").to_pylist() == [b"3", b"4", b"5"]
    # A row group is one batch: the first comes whatever its size, and the next if it fits.
    only = await fetched(api, "t", offset=0, max_bytes=1)
    assert (seen(only), only.next_offset) == ([(0, 3, PARQUET)], 3)
    # The reader leaves out records of the row group below the offset.
    for max_bytes, expected in ((10_000, [2, 3, 4, 5, 6]), (1, [2])):
        within = await fetched(api, "t", offset=2, max_bytes=max_bytes)
        assert batches(within)[0].payload.equals(batches(whole)[0].payload)
        assert (offsets(within, 2), within.next_offset) == (expected, expected[-1] + 1)


async def test_max_bytes_bounds_what_repeats_however_little_of_it_is_stored(api):
    """Repeat one key a thousand times, for which Parquet takes a few bytes."""
    await api.create_topic("t")
    keys = pa.array([b"k" * 1_000] * 1_000, pa.binary())
    sent = values(*[""] * 1_000).set_column(1, WIRE_SCHEMA.field("key"), keys)
    for _ in range(4):
        await api.post("/topics/t", content=stream((None, sent)), headers={"Content-Type": ARROW})
        assert (await api.post("/topics/t/roll")).status_code == 200
    answer = await fetched(api, "t", offset=0, max_bytes=2_500_000)
    assert [(batch.base_offset, batch.record_count) for batch in batches(answer)] == [(0, 1_000), (1_000, 1_000)]
    assert answer.content[0].size < 10_000


async def test_records_that_were_deleted_do_not_come_with_their_row_group(api):
    await api.create_topic("t")
    await api.produce("t", [0, 1, 2])
    assert (await api.post("/topics/t/roll")).status_code == 200
    deleted = await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 1})
    assert deleted.status_code == 200, deleted.text
    (batch,) = batches(await fetched(api, "t", offset=1))
    assert (batch.base_offset, batch.record_count, batch.flags) == (1, 2, PARQUET)
    read = pq.read_table(pa.BufferReader(batch.payload))
    assert (read.column("offset").to_pylist(), read.column("value").to_pylist()) == ([1, 2], [b"1", b"2"])


async def test_files_of_other_writers_come_as_row_groups_of_what_fits(api):
    """Read files of other writers, which have no checksums and row groups of any size."""
    await api.create_topic("t")
    for first in (0, 3, 6):
        await api.produce("t", [str(n) * 100 for n in range(first, first + 3)])
        assert (await api.post("/topics/t/roll")).status_code == 200
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    DeltaTable(str(path_of(topic.table))).optimize.z_order(["offset"])
    await api.broker.topics.tables.refresh(INTERNAL, topic)
    first = await fetched(api, "t", offset=2, max_bytes=500)
    assert {batch.flags for batch in batches(first)} == {PARQUET}
    assert (offsets(first), first.next_offset) == ([2, 3, 4], 5)
    assert offsets(await fetched(api, "t", offset=5)) == [5, 6, 7, 8]


async def test_large_answers_are_the_same_bytes_in_pieces(api):
    await api.create_topic("t")
    sent = values(*(str(n) * 300 for n in range(3000)))
    for _ in range(3):
        await api.post("/topics/t", content=stream((None, sent)), headers={"Content-Type": ARROW})
    answer = await fetched(api, "t", offset=0)
    assert [decode_payload(batch.payload).equals(sent) for batch in batches(answer)] == [True] * 3
    arrow = await api.fetch("t", offset=0, max_bytes=64 << 20, accept=ARROW)
    assert pa.ipc.open_stream(arrow.content).read_all().column("value").to_pylist() == 3 * sent.column(2).to_pylist()


async def test_batches_as_they_are_stored_come_from_fetch_alone(api):
    await api.create_topic("t")
    answer = await api.fetch("t", offset=0, max_wait_ms=0, accept="application/vnd.logstore.frames")
    assert_error(answer, 406)


# ---- record batches of Kafka's clients -------------------------------------------------------------------------------


def of_aiokafka(compression: int) -> bytes:
    """Return a record batch as another client makes it, with nulls, empty values, repeated headers and one record
    without a time.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for at, (timestamp, key, value, headers) in enumerate(
        [
            (1_700_000_000_000, b"k", b"v" * 500, [("same", b"1"), ("same", b"")]),
            (-1, None, b"", []),
            (5, b"", None, []),
        ]
    ):
        assert builder.append(at, timestamp, key, value, headers) is not None
    return bytes(builder.build())


@pytest.mark.parametrize("compression", range(5))
async def test_http_readers_get_what_a_kafka_client_has_sent(api, compression):
    await api.create_topic("t")
    await api.produce("t", ["before"])
    sent = [TopicBatches("t", [(0, of_aiokafka(compression))])]
    (((_, base_offset, *_, error),),) = (await api.broker.produce.batches.produce(CLIENT, sent)).outcomes
    assert (base_offset, error) == (1, None)
    await api.produce("t", ["behind"])
    for _ in ("tail", "history"):
        rows = (await api.fetch("t", accept=BINARY_V2, max_wait_ms=0)).json()
        values = [None if row["value"] is None else base64.b64decode(row["value"]) for row in rows]
        assert values == [b'"before"', b"v" * 500, b"", None, b'"behind"']
        assert [row["key"] for row in rows[1:4]] == ["aw==", None, ""]
        arrow = pa.ipc.open_stream((await api.fetch("t", accept=ARROW, max_wait_ms=0)).content).read_all()
        assert arrow["offset"].to_pylist() == [0, 1, 2, 3, 4]
        times = arrow["timestamp"].cast(pa.int64()).to_pylist()
        assert times[1:4] == [1_700_000_000_000, times[2], 5]
        assert times[0] <= times[2] <= times[4], "the append time"
        assert arrow["headers"].to_pylist()[1:4] == [
            [{"key": "same", "value": b"1"}, {"key": "same", "value": b""}],
            None,
            None,
        ]
        stored = pa.Table.from_batches((await fetched(api, "t", offset=0)).records(0))
        assert stored.select(arrow.column_names).equals(arrow)
        await api.broker.topics.tables.roll(INTERNAL, api.broker.topics.served.topic(INTERNAL, "t"))


async def test_small_batches_of_kafka_clients_come_as_one(api):
    await api.create_topic("t")
    for _ in range(20):
        await api.broker.produce.batches.produce(CLIENT, [TopicBatches("t", [(0, of_aiokafka(0))])])
    (batch,) = batches(await fetched(api, "t", offset=0))
    assert (batch.base_offset, batch.record_count, batch.flags) == (0, 60, 0)
    assert decode_payload(batch.payload).column("timestamp").null_count == 0
