"""Each client's records are read by every other client, over HTTP and from the Delta table exactly as they were sent:
nulls, empty bytes, repeated headers, times, every codec; from the journal, from history, and from both.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from deltalake import DeltaTable

from logstore.client.admin import Admin
from tests.support.kafka_clients import CLIENTS, HTTP, Client, Served
from tests.support.kafka_clients.records import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    PARTITIONS,
    ReadRecord,
    SentRecord,
    alike_records,
    by_partition,
    peculiar_records,
    sent_by_partition,
)

pytestmark = pytest.mark.system

TIMES = {"CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}


@dataclass
class SentTopic:
    """The records that one client sent with one codec, and the acknowledged offsets."""

    name: str
    client: Client
    timestamp_type: str
    records: list[SentRecord]
    offsets: list[int]
    began_ms: int
    ended_ms: int

    def check(self, read: list[ReadRecord]) -> None:
        """Check that the records read are those sent, each once, in order, at the acknowledged offsets, with the
        topic's timestamp type.
        """
        found = by_partition(read)
        expected = sent_by_partition(self.records)
        places: dict[int, list[int]] = {}
        for record, offset in zip(self.records, self.offsets, strict=True):
            places.setdefault(record.partition, []).append(offset)
        assert found.keys() == expected.keys()
        for partition, records in found.items():
            assert [record.offset for record in records] == sorted(places[partition])
            assert [record.offset for record in records] == list(range(len(records)))
            if self.timestamp_type == "LogAppendTime":
                assert all(self.began_ms <= record.timestamp_ms <= self.ended_ms for record in records)
                assert [_without_time(record.sent) for record in records] == list(
                    map(_without_time, expected[partition])
                )
            else:
                assert [record.sent for record in records] == expected[partition]
            kinds = {record.timestamp_type for record in records} - {None}
            assert kinds <= {TIMES[self.timestamp_type]}


def _without_time(record: SentRecord) -> SentRecord:
    return record._replace(timestamp_ms=0)


def _clients(served: Served) -> list[Client]:
    return [client for client in CLIENTS if client is not HTTP or not served.is_kafka]


@pytest.fixture(scope="module")
def sent(served: Served, new_topic) -> list[SentTopic]:
    """Send to a topic for each client, codec and timestamp type."""
    topics = []
    for client in _clients(served):
        for timestamp_type in TIMES:
            for codec in client.codecs:
                name = new_topic(f"{client.name}-{codec}", PARTITIONS, message_timestamp_type=timestamp_type)
                topic = SentTopic(name, client, timestamp_type, [], [], round(time.time() * 1000) - 1, 0)
                _send(served, topic, codec)
                topics.append(topic)
    return topics


def _send(served: Served, topic: SentTopic, codec: str) -> None:
    records = [record for record in peculiar_records() if topic.client.can_send(record)] + alike_records(400)
    topic.offsets += topic.client.produce(served, topic.name, records, codec)
    topic.records += records
    topic.ended_ms = round(time.time() * 1000) + 1


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def reader(request: pytest.FixtureRequest, served: Served) -> Client:
    if request.param not in _clients(served):
        pytest.skip("a real Kafka has no HTTP")
    return request.param


def _check_all(served: Served, reader: Client, sent: list[SentTopic]) -> None:
    found = reader.read(served, {topic.name: PARTITIONS for topic in sent})
    for topic in sent:
        try:
            topic.check(found[topic.name])
        except AssertionError as error:
            raise AssertionError(f"{reader.name} read {topic.name} ({topic.timestamp_type}): {error}") from error


def test_every_client_reads_what_the_others_sent(served: Served, sent: list[SentTopic], reader: Client):
    _check_all(served, reader, sent)


@pytest.fixture(scope="module")
def rolled(served: Served, sent: list[SentTopic]) -> Iterator[list[SentTopic]]:
    """Roll all of them: the same records are history now."""
    if served.is_kafka:
        pytest.skip("a real Kafka has no roll")
    with Admin(served.url) as admin:
        for topic in sent:
            admin.roll(topic.name)
    return sent


def test_every_client_reads_history(served: Served, rolled: list[SentTopic], reader: Client):
    _check_all(served, reader, rolled)


def test_the_tables_have_the_same_records(served: Served, rolled: list[SentTopic]):
    for topic in rolled:
        table = DeltaTable(served.data / "topics" / topic.name).to_pyarrow_dataset().to_table()
        topic.check([_row(row) for row in sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))])


def _row(row: dict[str, Any]) -> ReadRecord:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    at = row["timestamp"].timestamp()
    return ReadRecord(row["partition"], row["offset"], row["key"], row["value"], headers, round(at * 1000), None)


@pytest.fixture(scope="module")
def half_rolled(served: Served, rolled: list[SentTopic]) -> list[SentTopic]:
    """Add the same number of records in the journal, behind the history."""
    for topic in rolled:
        _send(served, topic, "none")
    return rolled


def test_every_client_reads_history_and_the_tail_behind_it(
    served: Served, half_rolled: list[SentTopic], reader: Client
):
    _check_all(served, reader, half_rolled)
