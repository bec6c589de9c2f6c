from uuid import uuid4

import pytest

from logstore.client.admin import Admin
from logstore.client.producer import Producer
from logstore.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTopicError,
    LogStoreError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)


def test_a_topic_from_creation_to_deletion(admin: Admin):
    name = f"life-{uuid4().hex[:8]}"
    admin.create_topic(name, partitions=2, configs={"retention.ms": "1000"})
    assert [t.partitions_count for t in admin.topics() if t.topic_name == name] == [2]
    described = admin.describe_topic(name)
    assert described.configs["retention.ms"] == "1000"
    assert [p.partition for p in described.partitions] == [0, 1]
    assert described.location.endswith(f"/topics/{name}")

    admin.alter_configs(name, {"retention.ms": None, "segment.ms": "5000"})
    configs = {entry.name: entry for entry in admin.topic_configs(name)}
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("-1", True)
    assert (configs["segment.ms"].value, configs["segment.ms"].is_default) == ("5000", False)

    admin.add_partitions(name, 3)
    assert len(admin.describe_topic(name).partitions) == 3
    admin.delete_topic(name)
    with pytest.raises(UnknownTopicError):
        admin.describe_topic(name)


def test_refusals_are_told_apart(admin: Admin, topic: str):
    with pytest.raises(TopicExistsError):
        admin.create_topic(topic)
    with pytest.raises(InvalidRequestError, match="retention"):
        admin.create_topic("new", configs={"retention.mss": "1"})
    with pytest.raises(InvalidConfigError, match="retention"):
        admin.alter_configs(topic, {"retention.ms": "soon"})
    with pytest.raises(InvalidPartitionsError):
        admin.add_partitions(topic, 2)
    with pytest.raises(UnknownTopicError):
        admin.delete_topic("absent")
    with pytest.raises(UnknownPartitionError):
        admin.offsets(topic, 4)
    with pytest.raises(InvalidTopicError):
        admin.describe_topic("..")


def test_validate_only_creates_nothing(admin: Admin):
    admin.create_topic("only-checked", partitions=1, validate_only=True)
    with pytest.raises(UnknownTopicError):
        admin.describe_topic("only-checked")


def test_roll_offsets_and_delete_records(admin: Admin, store: str, topic: str):
    with Producer(store) as producer:
        for second in range(10):
            producer.send(topic, b"v", partition=1, timestamp_ms=1_000 * second)
    offsets = admin.offsets(topic, 1, timestamp_ms=4_500)
    assert (offsets.beginning_offset, offsets.end_offset, offsets.offset, offsets.timestamp) == (0, 10, 5, 5_000)
    assert admin.offsets(topic, 1, timestamp_ms=99_000).offset is None

    rolled = admin.roll(topic)
    assert {entry.partition: entry.sealed_offset for entry in rolled.sealed_offsets}[1] == 10
    assert admin.describe_topic(topic).partitions[1].sealed_offset == 10
    assert admin.delete_records(topic, 1, 4) == 4
    assert admin.offsets(topic, 1).beginning_offset == 4
    with pytest.raises((OffsetOutOfRangeError, InvalidRequestError)):
        admin.delete_records(topic, 1, 11)


def test_something_else_that_answers_is_named(store: str):
    with Admin(f"{store}/no/store/here", retry_timeout_s=0) as admin, pytest.raises(LogStoreError):
        admin.topics()
