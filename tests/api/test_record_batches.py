"""Batches that stay what their producer made them: on the way in, in the journal, and on the way to a reader."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.records.fetch_sections import SECTION_HEADER
from logstore.records.payload import decode_payload
from logstore.records.record_batch import ALIGNMENT, BATCH_HEADER, HAS_OFFSETS, LOG_APPEND_TIME, PARQUET
from logstore.records.schema import LOG_SCHEMA, WIRE_SCHEMA
from tests.api.api_client import ARROW, assert_error
from tests.support.records import Row, wire_batch

pytestmark = pytest.mark.anyio


def stream(*parts: tuple[bytes | None, pa.RecordBatch], compression: str | None = None) -> bytes:
    """A stream of batches, each with the partition that its metadata names."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, parts[0][1].schema, options=options) as writer:
        for partition, batch in parts:
            writer.write_batch(batch, custom_metadata=None if partition is None else {b"partition": partition})
    return sink.getvalue().to_pybytes()


def values(*texts: str) -> pa.RecordBatch:
    return wire_batch([Row(None, None, text.encode(), None) for text in texts])


async def stored(api, offset: int, topic: str = "t", partition: int = 0, max_bytes: int = 10_000) -> tuple[bytes, int]:
    """The batches of one partition from ``offset`` on, as many as there are, and the next offset."""
    wanted = [{"topic": topic, "partition": partition, "offset": offset}]
    limits = {"max_partition_bytes": max_bytes, "max_wait_ms": 0}
    answer = await api.post("/fetch", json={"partitions": wanted, **limits})
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    if not answer.content:
        return b"", offset
    _, error_code, _, _, next_offset, length = SECTION_HEADER.unpack_from(answer.content)
    assert error_code == 0
    return answer.content[SECTION_HEADER.size : SECTION_HEADER.size + length], next_offset


def batches(body: bytes):
    """(base offset, append time, count, flags, payload) of each batch."""
    at = 0
    while at < len(body):
        base_offset, append_time_ms, count, flags, length = BATCH_HEADER.unpack_from(body, at)
        at += BATCH_HEADER.size
        yield base_offset, append_time_ms, count, flags, body[at : at + length]
        at += length + -length % ALIGNMENT


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
        content, _ = await stored(api, 0, partition=partition)
        for base_offset, _, count, flags, payload in batches(content):
            assert payload in body, "not what was sent"
            assert flags == 0
            rows = decode_payload(payload)
            assert rows.num_rows == count
            read.append((partition, base_offset, rows.column("value").to_pylist()))
    assert read == [(2, 0, [b"a", b"b" * 500]), (2, 2, [b"d"]), (0, 0, [b"c"])]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("", stream((b"0", values("a")), (None, values("b"))), 422, "names partition None"),
        ("", stream((b"-1", values("a"))), 422, "names partition b'-1'"),
        ("", stream((b"99999999999", values("a"))), 422, "names partition"),
        ("", stream((b"0", values("a")), (b"2", values("b"))), 404, "Partition 2 not found"),
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


async def test_keys_are_asked_for_in_every_batch_of_a_compacted_topic(api):
    await api.create_topic("t", partitions=2, cleanup_policy="compact")
    keyed = wire_batch([Row(None, b"k", b"v", None)] * 2)
    body = stream((b"0", keyed), (b"1", values("a")))
    answer = await api.post("/topics/t", content=body, headers={"Content-Type": ARROW})
    assert_error(answer, 422)
    assert "Record 2 has no key" in answer.json()["message"]
    assert api.end_offsets("t") == [0, 0]


async def test_stored_batches_come_whole_from_the_tail_and_as_rows_from_within_a_row_group(api):
    await api.create_topic("t", message_timestamp_type="LogAppendTime")
    await api.produce("t", [0, 1, 2])
    assert (await api.post("/topics/t/roll")).status_code == 200
    await api.produce("t", [3, 4, 5])
    await api.produce("t", [6])
    history, *_ = batches((await stored(api, 1))[0])
    first, second = batches((await stored(api, 3))[0])
    rows = pa.ipc.read_record_batch(pa.py_buffer(history[4]), LOG_SCHEMA)
    assert (history[0], history[2], history[3]) == (1, 2, HAS_OFFSETS)
    assert rows.column("offset").to_pylist() == [1, 2]
    assert rows.column("value").to_pylist() == [b"1", b"2"]
    assert (first[0], first[2], first[3]) == (3, 3, LOG_APPEND_TIME)
    assert (second[0], second[2], second[3]) == (6, 1, LOG_APPEND_TIME)
    timestamps = rows.column("timestamp").cast(pa.int64()).to_pylist()
    assert timestamps[-1] <= first[1] <= second[1]
    assert pa.ipc.read_record_batch(pa.py_buffer(first[4]), WIRE_SCHEMA).column("value").to_pylist() == [
        b"3",
        b"4",
        b"5",
    ]

    from_inside, _ = await stored(api, 4)
    assert [batch[:3:2] for batch in batches(from_inside)] == [(3, 3), (6, 1)]
    one_at_a_time, next_offset = await stored(api, 3, max_bytes=1)
    assert [batch[0] for batch in batches(one_at_a_time)] == [3]
    assert next_offset == 6
    assert await stored(api, 7) == (b"", 7)


async def test_history_comes_as_whole_row_groups_where_none_of_it_is_below_what_was_asked_for(api):
    await api.create_topic("t")
    for first in (0, 3):
        await api.produce("t", [first, first + 1, first + 2])
        assert (await api.post("/topics/t/roll")).status_code == 200
    await api.produce("t", [6])

    async def fetched(offset: int, max_bytes: int = 10_000):
        content, next_offset = await stored(api, offset, max_bytes=max_bytes)
        return [(batch[0], batch[2], batch[3], batch[4]) for batch in batches(content)], next_offset

    (first, second, tail), next_offset = await fetched(0)
    assert (first[:3], second[:3], tail[:3], next_offset) == ((0, 3, PARQUET), (3, 3, PARQUET), (6, 1, 0), 7)
    read = pq.read_table(pa.BufferReader(second[3]))
    assert read.column("offset").to_pylist() == [3, 4, 5]
    assert read.column("value").to_pylist() == [b"3", b"4", b"5"]
    # A row group is one batch: the first comes whatever it takes, the next if it fits.
    (only,), next_offset = await fetched(0, max_bytes=1)
    assert (only, next_offset) == (first, 3)
    # Within a row group rows are read, and whole ones from the next on.
    (rows, whole, _), next_offset = await fetched(2)
    assert (rows[:3], whole, next_offset) == ((2, 1, HAS_OFFSETS), second, 7)
    (only,), next_offset = await fetched(2, max_bytes=60)
    assert (only[:3], next_offset) == ((2, 1, HAS_OFFSETS), 3)


async def test_max_bytes_bounds_what_repeats_however_little_of_it_is_stored(api):
    """Parquet takes a few bytes for a thousand times the same key."""
    await api.create_topic("t")
    keys = pa.array([b"k" * 1_000] * 1_000, pa.binary())
    sent = values(*[""] * 1_000).set_column(1, WIRE_SCHEMA.field("key"), keys)
    for _ in range(4):
        await api.post("/topics/t", content=stream((None, sent)), headers={"Content-Type": ARROW})
        assert (await api.post("/topics/t/roll")).status_code == 200
    content, _ = await stored(api, 0, max_bytes=2_500_000)
    assert [batch[:3:2] for batch in batches(content)] == [(0, 1_000), (1_000, 1_000)]
    assert len(content) < 10_000


async def test_records_that_were_deleted_do_not_come_with_their_row_group(api):
    await api.create_topic("t")
    await api.produce("t", [0, 1, 2])
    assert (await api.post("/topics/t/roll")).status_code == 200
    deleted = await api.post("/topics/t/partitions/0/delete-records", json={"before_offset": 1})
    assert deleted.status_code == 200, deleted.text
    (rows,) = batches((await stored(api, 1))[0])
    assert (rows[0], rows[2], rows[3]) == (1, 2, HAS_OFFSETS)


async def test_large_answers_are_the_same_bytes_in_pieces(api):
    await api.create_topic("t")
    sent = values(*(str(n) * 300 for n in range(3000)))
    for _ in range(3):
        await api.post("/topics/t", content=stream((None, sent)), headers={"Content-Type": ARROW})
    content, _ = await stored(api, 0, max_bytes=64 << 20)
    assert [decode_payload(batch[4]).equals(sent) for batch in batches(content)] == [True] * 3
    arrow = await api.fetch("t", offset=0, max_bytes=64 << 20, accept=ARROW)
    assert pa.ipc.open_stream(arrow.content).read_all().column("value").to_pylist() == 3 * sent.column(2).to_pylist()
