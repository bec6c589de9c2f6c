"""Every request that names partitions gets Kafka's answer for numbers that the topic does not have."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.context import INTERNAL
from logstore.kafka_protocol import messages as m
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.definitions import Field, request_and_response
from tests.support.kafka_client import batch_of, produce_request
from tests.support.kafka_handlers import kafka_handlers
from tests.support.kafka_reading import ask
from tests.support.running_broker import produce
from tests.support.virtual_time import run

UNKNOWN, INVALID_REQUEST, INVALID_ASSIGNMENT = 3, 42, 39
PARTITIONS = 3
DESCRIBE_TOPIC_PARTITIONS = 75


def _list_offsets(number: int) -> Any:
    partition = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=number, timestamp=-1)
    topic = m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[partition])
    return m.ListOffsetsRequest(replica_id=-1, topics=[topic])


def _fetch(number: int) -> Any:
    partition = m.FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000)
    topic = m.FetchRequest.FetchTopic(topic="t", partitions=[partition])
    return m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic])


def _offset_commit(*numbers: int) -> Any:
    partitions = [
        m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=number, committed_offset=1)
        for number in numbers
    ]
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=partitions)
    return m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])


def _offset_fetch(number: int) -> Any:
    topic = m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[number])
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def _offset_delete(number: int) -> Any:
    partition = m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number)
    topic = m.OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[partition])
    return m.OffsetDeleteRequest(group_id="g", topics=[topic])


def _delete_records(number: int) -> Any:
    partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=number, offset=-1)
    topic = m.DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[partition])
    return m.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)


def _leader_epoch(number: int) -> Any:
    partition = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=number, leader_epoch=0)
    topic = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[partition])
    return m.OffsetForLeaderEpochRequest(topics=[topic])


def _sizes(number: int) -> Any:
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[number])
    return m.DescribeLogDirsRequest(topics=[topic])


def _cursor(number: int) -> Any:
    cursor = m.DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=number)
    topic = m.DescribeTopicPartitionsRequest.TopicRequest(name="t")
    return m.DescribeTopicPartitionsRequest(topics=[topic], cursor=cursor)


def _new_topic(number: int) -> Any:
    assignments = [
        m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=one, broker_ids=[0]) for one in (0, number)
    ]
    topic = m.CreateTopicsRequest.CreatableTopic(
        name="new", num_partitions=-1, replication_factor=-1, assignments=assignments
    )
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def _heartbeat(number: int, epoch: int = 1) -> Any:
    """Return a heartbeat of a member that says it owns the partition; with epoch 0 it joins and owns none."""
    owned = m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=uuid.uuid4().bytes, partitions=[number])
    return m.ConsumerGroupHeartbeatRequest(
        group_id="members",
        member_id="a",
        member_epoch=epoch,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[owned] if epoch else [],
    )


def _errors_of_partitions(answer: Any) -> list[int]:
    return [one.error_code for topic in answer.topics for one in topic.partitions]


def _errors_of_topics(answer: Any) -> list[int]:
    return [topic.error_code for topic in answer.topics]


def _errors_of_produce(answer: Any) -> list[int]:
    return [one.error_code for topic in answer.responses for one in topic.partition_responses]


def _errors_of_fetch(answer: Any) -> list[int]:
    return [one.error_code for topic in answer.responses for one in topic.partitions]


def _errors_and_offsets(answer: Any) -> list[tuple[int, int]]:
    found = [one for group in answer.groups for topic in group.topics for one in topic.partitions]
    return [(one.error_code, one.committed_offset) for one in found]


#: For each API: a version, the request for a partition, the part of the answer that counts, and its expected value.
REQUESTS: dict[int, tuple[int, Callable[[int], Any], Callable[[Any], Any], Any]] = {
    0: (12, lambda number: produce_request({number: batch_of(b"x")}), _errors_of_produce, [UNKNOWN]),
    1: (12, _fetch, _errors_of_fetch, [UNKNOWN]),
    2: (10, _list_offsets, _errors_of_partitions, [UNKNOWN]),
    8: (9, _offset_commit, _errors_of_partitions, [UNKNOWN]),
    # No offset is committed for it, which is not an error.
    9: (9, _offset_fetch, _errors_and_offsets, [(0, -1)]),
    19: (7, _new_topic, _errors_of_topics, [INVALID_ASSIGNMENT]),
    21: (2, _delete_records, _errors_of_partitions, [UNKNOWN]),
    23: (4, _leader_epoch, _errors_of_partitions, [UNKNOWN]),
    # No log directory has a replica of it, which is not an error.
    35: (4, _sizes, lambda answer: [len(one.topics) for one in answer.results], [0]),
    47: (0, _offset_delete, _errors_of_partitions, [UNKNOWN]),
    68: (1, _heartbeat, lambda answer: answer.error_code, 0),
    # A cursor may be behind the last partition: then none is left.
    75: (0, _cursor, _errors_of_topics, None),
}


def _fields(fields: Sequence[Field]) -> Iterator[Field]:
    for field in fields:
        yield field
        yield from _fields(field.fields)


def test_no_api_that_names_partitions_is_missing() -> None:
    names = {"Index", "Partition", "PartitionIndex", "PartitionIndexes", "Partitions"}
    naming = set()
    for key in APIS:
        request, _ = request_and_response(key)
        structures = (request.fields, *(one.fields for one in request.common_structs))
        if any(f.name in names and f.element_type == "int32" for fields in structures for f in _fields(fields)):
            naming.add(key)
    assert naming == REQUESTS.keys()


@pytest.mark.parametrize("number", [-1, -(1 << 31), PARTITIONS, (1 << 31) - 1])
def test_the_number_of_a_partition_that_is_not_there_is_no_other_partition(tmp_path: Path, number: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                await produce(handlers.broker, topic, [b"value"], partition=partition)
            assert _errors_of_partitions(await ask(handlers, 8, 9, _offset_commit(*range(PARTITIONS)))) == [0, 0, 0]
            assert (await ask(handlers, 68, 1, _heartbeat(number, epoch=0))).error_code == 0
            for key, (version, request, look, expected) in REQUESTS.items():
                if key == DESCRIBE_TOPIC_PARTITIONS:
                    expected = [INVALID_REQUEST if number < 0 else 0]  # noqa: PLW2901
                answer = await ask(handlers, key, version, request(number))
                assert look(answer) == expected, APIS[key].name
            assert [(log.log_start_offset, log.log_end_offset) for log in topic.partitions] == [(0, 1)] * PARTITIONS

    run(scenario())
