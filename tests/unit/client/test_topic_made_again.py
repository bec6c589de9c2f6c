"""A topic is deleted and made again under its readers: the new one is no continuation of it."""

import time
from uuid import uuid4

import pytest

from logstore import TopicPartition
from logstore.client.admin import Admin
from logstore.client.consumer import Consumer
from logstore.errors import NoOffsetForPartitionError, UnknownTopicError, UnknownTopicIdError
from tests.support.posting import post

OLD, NEW = [b"old"] * 50, [b"new %d" % i for i in range(200)]


@pytest.fixture
def old(store: str, admin: Admin) -> TopicPartition:
    """The one partition of a topic, with 50 records."""
    name = f"t-{uuid4().hex[:12]}"
    admin.create_topic(name, partitions=1)
    post(store, name, 0, OLD)
    return TopicPartition(name, 0)


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:12]}"


def make_again(admin: Admin, store: str, old: TopicPartition, values: list[bytes] = NEW, partitions: int = 1) -> None:
    admin.delete_topic(old.topic)
    admin.create_topic(old.topic, partitions=partitions)
    for partition in range(partitions):
        post(store, old.topic, partition, values)


def values_until(consumer: Consumer, last: bytes, *, columns: bool = False) -> list[bytes]:
    """What comes, up to the first ``last``; that the topic is away for a moment is told."""
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while last not in values:
        assert time.monotonic() < deadline, values[-3:]
        try:
            if columns:
                batch = consumer.poll_arrow()
                values += batch.batch.column("value").to_pylist() if batch else []
            else:
                values += [record.value for record in consumer.poll()]
        except UnknownTopicIdError:
            raise
        except UnknownTopicError:
            continue
    return values


def committed(admin: Admin, group: str) -> dict[tuple[str, int], int]:
    if group not in admin.groups():
        return {}
    return {(found.topic, found.partition): found.offset for found in admin.group_offsets(group)}


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_a_consumer_begins_anew_and_commits_no_old_position(
    store: str, admin: Admin, old: TopicPartition, group: str, paused: bool, columns: bool
) -> None:
    with Consumer(store, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([old])
        while consumer.position(old) < len(OLD):
            consumer.poll()
        consumer.commit()
        if paused:
            consumer.pause([old])
        make_again(admin, store, old)
        if paused:
            with pytest.raises(UnknownTopicIdError):
                consumer.commit()
            assert consumer.poll(timeout_s=0.2) == []
            assert (consumer.paused(), consumer.position(old)) == ({old}, 0)
            consumer.resume([old])
        assert values_until(consumer, NEW[-1], columns=columns) == NEW
        assert committed(admin, group) == {}
        consumer.commit()
        assert committed(admin, group) == {old: len(NEW)}


def test_without_a_look_in_between_a_resumed_partition_begins_anew(
    store: str, admin: Admin, old: TopicPartition
) -> None:
    with Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        consumer.pause([old])
        make_again(admin, store, old)
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW


def test_latest_goes_on_with_what_comes_and_none_is_an_error(store: str, admin: Admin, old: TopicPartition) -> None:
    with (
        Consumer(store, auto_offset_reset="latest") as latest,
        Consumer(store, group_id="none", enable_auto_commit=False, auto_offset_reset="none") as none,
    ):
        for consumer in (latest, none):
            consumer.assign([old])
            consumer.seek(old, 0)
            while consumer.position(old) < len(OLD):
                consumer.poll()
            consumer.pause([old])
        make_again(admin, store, old)
        for consumer in (latest, none):
            consumer.resume([old])
        assert latest.poll(timeout_s=0.3) == []
        post(store, old.topic, 0, [b"last"])
        assert values_until(latest, b"last") == [b"last"]
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError, match="made again"):
                none.poll(timeout_s=20)
        none.seek(old, 190)
        assert values_until(none, b"last") == [*NEW[190:], b"last"]


def test_what_the_group_has_in_the_new_topic_counts(store: str, admin: Admin, old: TopicPartition, group: str) -> None:
    with Consumer(store, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        consumer.pause([old])
        make_again(admin, store, old)
        admin.commit_offsets(group, {old: 150})
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW[150:]


@pytest.mark.parametrize("iterating", [False, True])
def test_what_was_prefetched_of_the_old_topic_is_dropped(
    store: str, admin: Admin, old: TopicPartition, group: str, iterating: bool
) -> None:
    # Nothing is fetched while there is something to hand out, so that nobody sees that the topic is away.
    with Consumer(
        store,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_bytes=1,
        max_poll_records=1,
        consumer_timeout_ms=500,
    ) as consumer:
        consumer.assign([old])
        records = iter(consumer)
        found = [next(records).value if iterating else consumer.poll(timeout_s=20)[0].value]
        make_again(admin, store, old)
        with pytest.raises(UnknownTopicIdError):
            consumer.commit()
        found += [record.value for record in records] if iterating else values_until(consumer, NEW[-1])
        assert found == [OLD[0], *NEW]


def test_a_commit_that_is_refused_late_does_not_begin_the_new_topic_anew_again(
    store: str, admin: Admin, old: TopicPartition, group: str
) -> None:
    before = admin.describe_topic(old.topic).topic_id
    with Consumer(store, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        make_again(admin, store, old)
        assert values_until(consumer, NEW[-1]) == NEW
        assert consumer._committer is not None
        late = consumer._committer.commit({old: len(OLD)}, {old.topic: before})
        assert isinstance(late.exception(20), UnknownTopicIdError)
        assert consumer.poll(timeout_s=0.2) == []
        assert consumer.position(old) == len(NEW)


def test_auto_commit_leaves_out_the_topic_alone_that_was_made_again(
    store: str, admin: Admin, old: TopicPartition, topic: str, group: str
) -> None:
    post(store, topic, 3, OLD)
    other = TopicPartition(topic, 3)
    with Consumer(store, group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=60_000) as consumer:
        consumer.assign([old, other])
        while [consumer.position(old), consumer.position(other)] != [len(OLD)] * 2:
            consumer.poll()
        consumer.pause([old, other])
        make_again(admin, store, old)
    assert committed(admin, group) == {other: len(OLD)}


def test_the_same_offset_in_the_new_topic_is_committed_too(
    store: str, admin: Admin, old: TopicPartition, group: str
) -> None:
    with Consumer(store, group_id=group, auto_offset_reset="earliest", auto_commit_interval_ms=50) as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        deadline = time.monotonic() + 20
        while committed(admin, group) != {old: len(OLD)}:
            consumer.poll(timeout_s=0.05)
            assert time.monotonic() < deadline
        make_again(admin, store, old, NEW[: len(OLD)])
        assert values_until(consumer, NEW[len(OLD) - 1]) == NEW[: len(OLD)]
    assert committed(admin, group) == {old: len(OLD)}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_subscription_follows_the_partitions_of_the_new_topic(
    store: str, admin: Admin, before: int, after: int
) -> None:
    topic = f"t-{uuid4().hex[:12]}"
    admin.create_topic(topic, partitions=before)
    post(store, topic, 0, OLD)
    with Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert values_until(consumer, OLD[-1])
        paused = TopicPartition(topic, 0)
        consumer.pause([paused])
        make_again(admin, store, paused, [b"new"], partitions=after)
        consumer.resume([paused])
        wanted = {TopicPartition(topic, partition) for partition in range(after)}
        deadline = time.monotonic() + 30
        count = 0
        while count < after:
            assert time.monotonic() < deadline
            try:
                count += len(consumer.poll())
            except UnknownTopicError:
                continue
        assert consumer.assignment() == wanted
        assert {partition: consumer.position(partition) for partition in wanted} == dict.fromkeys(wanted, 1)


def test_a_program_that_goes_to_the_beginning_goes_to_that_of_the_new_topic(
    store: str, admin: Admin, old: TopicPartition, group: str
) -> None:
    with Consumer(store, group_id=group, auto_offset_reset="latest", enable_auto_commit=False) as consumer:
        consumer.assign([old])
        consumer.seek(old, 7)
        assert consumer.position(old) == 7
        assert len(values_until(consumer, OLD[-1])) == len(OLD) - 7
        consumer.pause([old])
        make_again(admin, store, old)
        consumer.seek_to_beginning()
        consumer.commit()
        assert committed(admin, group) == {old: 0}
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW


def test_an_offset_of_the_old_topic_that_is_sought_is_not_read_in_the_new_one(
    store: str, admin: Admin, old: TopicPartition
) -> None:
    with Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        consumer.pause([old])
        make_again(admin, store, old)
        # As a program does that could not work on its last record.
        consumer.seek(old, len(OLD) - 1)
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW
