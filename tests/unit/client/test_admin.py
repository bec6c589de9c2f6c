from uuid import uuid4

import pytest

from logstore.client.admin import Admin, _config_text
from logstore.client.producer import Producer
from logstore.errors import (
    InvalidConfigError,
    InvalidGroupError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTopicError,
    LogStoreError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.limits import TIMES_PARTITIONS_MAX

pytestmark = pytest.mark.system


def test_the_stores_own_topics_are_listed_when_asked_for(admin: Admin):
    name = f"users-{uuid4().hex[:8]}"
    admin.create_topic(name)
    admin.commit_offsets("a-group", {(name, 0): 0})
    listed, everything = admin.topics(), admin.topics(include_internal=True)
    assert name in {topic.topic_name for topic in listed}
    assert not any(topic.is_internal for topic in listed)
    assert {topic.topic_name for topic in everything} - {topic.topic_name for topic in listed} == {"__consumer_offsets"}
    admin.delete_topic(name)


def test_a_topic_from_creation_to_deletion(admin: Admin):
    name = f"life-{uuid4().hex[:8]}"
    admin.create_topic(name, partitions=2, configs={"retention.ms": 1000})
    assert [t.partitions_count for t in admin.topics() if t.topic_name == name] == [2]
    described = admin.describe_topic(name)
    assert described.configs["retention.ms"] == "1000"
    assert [p.partition for p in described.partitions] == [0, 1]
    assert described.location.endswith(f"/topics/{name}")

    admin.alter_configs(name, {"retention.ms": None, "segment.ms": 5000})
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


def test_values_of_configs_are_sent_as_kafka_writes_them():
    assert [_config_text(value) for value in ("a", True, False, 5, 0.5)] == ["a", "true", "false", "5", "0.5"]


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

    times = {(topic, 1): 4_500, (topic, 0): 0}
    assert admin.offsets_for_times(times) == {(topic, 1): (5, 5_000), (topic, 0): None}
    assert admin.offsets_for_times({}) == {}
    with pytest.raises(UnknownPartitionError):
        admin.offsets_for_times({(topic, 9): 0})

    rolled = admin.roll(topic)
    assert {entry.partition: entry.sealed_offset for entry in rolled.sealed_offsets}[1] == 10
    assert admin.describe_topic(topic).partitions[1].sealed_offset == 10
    assert admin.delete_records(topic, 1, 4) == 4
    assert admin.offsets(topic, 1).beginning_offset == 4
    with pytest.raises((OffsetOutOfRangeError, InvalidRequestError)):
        admin.delete_records(topic, 1, 11)


def test_times_of_more_partitions_than_a_request_takes(admin: Admin, store: str):
    name = f"wide-{uuid4().hex[:8]}"
    admin.create_topic(name, partitions=TIMES_PARTITIONS_MAX + 5)
    with Producer(store) as producer:
        for partition in (0, TIMES_PARTITIONS_MAX + 4):
            producer.send(name, b"v", partition=partition, timestamp_ms=7)
    found = admin.offsets_for_times({(name, p): 0 for p in range(TIMES_PARTITIONS_MAX + 5)})
    assert len(found) == TIMES_PARTITIONS_MAX + 5
    assert {p: at for (_, p), at in found.items() if at} == {0: (0, 7), TIMES_PARTITIONS_MAX + 4: (0, 7)}
    admin.delete_topic(name)


def test_something_else_that_answers_is_named(store: str):
    with Admin(f"{store}/no/store/here", default_api_timeout_ms=0) as admin, pytest.raises(LogStoreError):
        admin.topics()


def test_a_group_from_its_first_commit_to_its_deletion(admin: Admin, store: str, topic: str):
    with Producer(store) as producer:
        producer.send_batch(topic, {"value": list("abcabc"), "partition": [0, 0, 0, 1, 1, 1]})
    group = f"g-{uuid4().hex[:8]}"
    admin.commit_offsets(group, {(topic, 0): 3, (topic, 1): 1}, metadata='é "x"')
    admin.commit_offsets(group, {(topic, 0): 2})
    assert group in admin.groups()
    found = admin.group_offsets(group)
    assert [(o.topic, o.partition, o.offset, o.metadata) for o in found] == [(topic, 0, 2, ""), (topic, 1, 1, 'é "x"')]
    assert found[0].timestamp >= found[1].timestamp > 0
    assert admin.group_offsets(group, topic=topic) == found
    lag = admin.group_lag(group)
    assert (lag.group, lag.total_lag, lag.max_lag) == (group, 3, 2)
    assert [(p.committed_offset, p.log_start_offset, p.high_watermark, p.lag) for p in lag.partitions] == [
        (2, 0, 3, 1),
        (1, 0, 3, 2),
        (None, 0, 0, 0),
        (None, 0, 0, 0),
    ]
    admin.delete_group(group)
    for gone in (admin.delete_group, admin.group_lag, admin.group_offsets):
        with pytest.raises(UnknownGroupError):
            gone(group)


def test_refusals_of_groups_are_told_apart(admin: Admin, topic: str):
    group = f"g-{uuid4().hex[:8]}"
    with pytest.raises(OffsetOutOfRangeError) as refused:
        admin.commit_offsets(group, {(topic, 0): 0, (topic, 1): 1})
    assert (refused.value.log_start_offset, refused.value.high_watermark) == (0, 0)
    with pytest.raises(UnknownTopicError):
        admin.commit_offsets(group, {("absent", 0): 0})
    with pytest.raises(UnknownPartitionError):
        admin.commit_offsets(group, {(topic, 4): 0})
    for name, offsets, metadata in (
        (group, {}, ""),
        (group, {(topic, 0): -1}, ""),
        (group, {(topic, 0): 0}, "x" * 4097),
        ("x" * 32_768, {(topic, 0): 0}, ""),
    ):
        with pytest.raises(InvalidRequestError):
            admin.commit_offsets(name, offsets, metadata=metadata)
    with pytest.raises(InvalidGroupError, match="half of a surrogate pair"):
        admin.group_lag("\ud800")
    for name in (".", "..", "a/b", ""):
        with pytest.raises(UnknownGroupError):
            admin.group_lag(name)
    with pytest.raises(UnknownGroupError):
        admin.group_offsets(group)
