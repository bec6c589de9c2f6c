"""Fetch of ``__consumer_offsets`` returns Kafka's schemas at the offsets of the store's records."""

import struct
from pathlib import Path
from typing import Any

from consumer_offsets.groups.events import ConsumerGroupHeartbeat
from consumer_offsets.kafka_records import kafka_record
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.context import INTERNAL
from logstore.kafka_batches.decoding import decode_batches
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import BatchHeader
from logstore.kafka_listener.fetch import fetch
from logstore.kafka_listener.held import Held
from logstore.kafka_listener.offsets_topic import in_kafkas_form
from logstore.kafka_protocol.messages import FetchRequest
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetCommit, OffsetKey, OffsetRecord
from tests.support.kafka_batches import log_batch
from tests.support.kafka_handlers import KAFKA_CLIENT, Handlers, kafka_handlers
from tests.support.records import Row
from tests.support.virtual_time import run


async def fetched(handlers: Handlers, offset: int = 0) -> list[tuple[int, bytes, bytes | None]]:
    """Return offset, key and value of the records that a fetch of partition 0 returns."""
    asked = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 30)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 30,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=OFFSETS_TOPIC, partitions=[asked])],
    )
    held = await fetch(handlers.store, KAFKA_CLIENT, request, 12)
    assert isinstance(held, Held)
    (answer,) = held.message.responses[0].partitions
    assert answer.error_code == 0
    found, records = [], b"".join(map(bytes, answer.records))
    held.release()
    while records:
        header = BatchHeader.read(memoryview(records))
        batch, records = records[: header.size], records[header.size :]
        rows, deltas = decode_batches([batch], inflated_bytes_max=1 << 20)
        assert header.record_count == rows.num_rows
        texts = zip(deltas.tolist(), rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        found += [(header.base_offset + delta, key, value) for delta, key, value in texts]
    return found


def test_a_kafka_consumer_is_given_kafkas_records_at_the_same_offsets(tmp_path: Path):
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, offsets_topic_num_partitions=1) as handlers:
            await handlers.broker.topics.changes.create(INTERNAL, "t")
            await handlers.store.groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 0, "Ω")])
            beat: dict[str, Any] = {"rebalance_timeout_ms": 1_000, "subscribed_topics": frozenset({"t"})}
            event = ConsumerGroupHeartbeat(0, "m", 0, owned=frozenset(), **beat)
            await handlers.store.groups.members.consumer_heartbeat(INTERNAL, "modern", event)
            topic = handlers.broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC)
            own = await handlers.broker.fetch.partition(
                INTERNAL, topic, 0, 0, max_bytes=1 << 20, min_bytes=0, max_wait_ms=0
            )
            rows = zip(*(own.records.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
            expected = [(offset, *kafka_record(key, value)) for offset, key, value in rows]  # type: ignore[misc]
            assert {struct.unpack(">h", key[:2])[0] for _, key, _ in expected} == {1, 3}
            assert await fetched(handlers) == expected
            assert own.records.column("key").to_pylist()[0].startswith(b"{"), "the topic's own records are JSON"

    run(scenario())


def test_a_record_without_a_form_of_kafkas_leaves_a_gap():
    commit = OffsetRecord(
        OffsetKey("g", "t", 0), OffsetCommit(1, -1, "", -1, "0" * 8 + "-0000" * 3 + "-" + "0" * 12, 5)
    )
    own = [Row(7, b'{"group":"g","instance":"i"}', b"{}", None), Row(8, *commit.encoded(), None)]
    stored = [bytes(encode_batch(log_batch(own, [10, 11]), leader_epoch=3, base_offset=9, end_offset=13))]
    stored.append(bytes(encode_batch(log_batch(own[:1], [13]), leader_epoch=4)))
    first, second = in_kafkas_form([b"".join(stored)])
    headers = [BatchHeader.read(memoryview(batch)) for batch in (first, second)]
    places = [(each.base_offset, each.last_offset, each.record_count, each.leader_epoch) for each in headers]
    assert places == [(9, 12, 1, 3), (13, 13, 0, 4)]
    rows, deltas = decode_batches([first], inflated_bytes_max=1 << 20)
    assert (deltas.tolist(), rows.column("value").to_pylist()) == ([2], [kafka_record(*commit.encoded())[1]])  # type: ignore[index]
    assert rows.column("timestamp").cast("int64").to_pylist() == [8]
