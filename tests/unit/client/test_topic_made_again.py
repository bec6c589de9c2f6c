"""A topic is deleted and made again under its readers and writers: the new topic does not continue the old one."""

import time
from itertools import islice
from uuid import uuid4

import pyarrow as pa
import pytest

from logstore import TopicPartition
from logstore.client.admin import Admin
from logstore.client.consumer import Consumer
from logstore.client.producer import Producer
from logstore.errors import NoOffsetForPartitionError, UnknownTopicError, UnknownTopicIdError
from logstore.spark.tail_reader import TailReadError, tail_reader
from tests.support.eventually import eventually
from tests.support.faulty_proxy import FaultyProxy
from tests.support.posting import post
from tests.support.stored_records import stored_records

pytestmark = pytest.mark.system

OLD, NEW = [b"old"] * 50, [b"new %d" % i for i in range(200)]


@pytest.fixture
def old(store: str, admin: Admin) -> TopicPartition:
    """Create a topic of one partition with 50 records, and return the partition."""
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
    """Return the values up to the first ``last``, and ignore errors of a topic that is away for a moment."""
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
def test_a_consumer_begins_again_and_commits_no_old_position(
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


def test_without_a_look_in_between_a_resumed_partition_begins_again(
    store: str, admin: Admin, old: TopicPartition
) -> None:
    with Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        consumer.pause([old])
        make_again(admin, store, old)
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW


def test_latest_continues_with_new_records_and_none_is_an_error(store: str, admin: Admin, old: TopicPartition) -> None:
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

        def is_at_the_end() -> bool:
            assert latest.poll(timeout_s=0.05) == []
            return latest.position(old) == len(NEW)

        eventually(is_at_the_end, "the new topic is not noticed")
        post(store, old.topic, 0, [b"last"])
        assert values_until(latest, b"last") == [b"last"]
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError, match="as it is now"):
                none.poll(timeout_s=20)
        none.seek(old, 190)
        assert values_until(none, b"last") == [*NEW[190:], b"last"]


def test_the_groups_offset_in_the_new_topic_counts(store: str, admin: Admin, old: TopicPartition, group: str) -> None:
    with Consumer(store, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        consumer.pause([old])
        make_again(admin, store, old)
        admin.commit_offsets(group, {old: 150})
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW[150:]


@pytest.mark.parametrize("iterating", [False, True])
def test_prefetched_records_of_the_old_topic_are_dropped(
    store: str, admin: Admin, old: TopicPartition, group: str, iterating: bool
) -> None:
    # The consumer fetches nothing while it has records to return, so it does not notice that the topic is away.
    with Consumer(
        store,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_bytes=1,
        max_poll_records=1,
        consumer_timeout_ms=20_000,
    ) as consumer:
        consumer.assign([old])
        records = iter(consumer)
        found = [next(records).value if iterating else consumer.poll(timeout_s=20)[0].value]
        make_again(admin, store, old)
        with pytest.raises(UnknownTopicIdError):
            consumer.commit()
        if iterating:
            found += [record.value for record in islice(records, len(NEW))]
        else:
            assert consumer.poll(timeout_s=0) == []
            found += values_until(consumer, NEW[-1])
        assert found == [OLD[0], *NEW]
        assert consumer.poll(timeout_s=0.2) == []


def test_a_commit_that_is_refused_late_does_not_begin_the_new_topic_again(
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


def test_offsets_that_a_program_kept_are_not_committed_to_the_new_topic(
    store: str, admin: Admin, old: TopicPartition, group: str
) -> None:
    with Consumer(store, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([old])
        assert values_until(consumer, OLD[-1])
        consumer.pause([old])
        make_again(admin, store, old)
        # At the second commit the consumer has looked at the new topic.
        for _ in range(2):
            with pytest.raises(UnknownTopicIdError):
                consumer.commit({old: len(OLD)})
            assert consumer.poll(timeout_s=0.2) == []
        consumer.resume([old])
        (record,) = consumer.poll(1, timeout_s=20)
        consumer.commit({old: record.offset + 1})
    assert committed(admin, group) == {old: 1}


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


def test_the_same_offset_in_the_new_topic_is_also_committed(
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
        # A program does this after it could not finish its last record.
        consumer.seek(old, len(OLD) - 1)
        consumer.resume([old])
        assert values_until(consumer, NEW[-1]) == NEW


def test_a_tail_for_spark_is_of_the_topic_that_the_query_was_made_for(
    store: str, admin: Admin, old: TopicPartition
) -> None:
    read = tail_reader((store,), old.topic, admin.describe_topic(old.topic).topic_id, [(0, 5, len(OLD))], "spark")
    task = [pa.RecordBatch.from_pydict({"id": [0]})]
    assert [value for batch in read(iter(task)) for value in batch.column("value").to_pylist()] == OLD[5:]
    make_again(admin, store, old)
    with pytest.raises(TailReadError, match="deleted and made again since this DataFrame was made"):
        list(read(iter(task)))


# ---- writing --------------------------------------------------------------------------------------------------------


def stored(store: str, topic: str) -> dict[int, list[bytes | None]]:
    return {partition: [r.value for r in found] for partition, found in stored_records(store, topic).items() if found}


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_counts_from_zero_in_the_new_topic(store: str, admin: Admin, topic: str, idempotent: bool) -> None:
    with FaultyProxy(store) as proxy, Producer(proxy.url, enable_idempotence=idempotent) as producer:
        # The new topic gets as many records, and there they repeat nothing.
        for value in (b"0", b"1"):
            producer.send_batch(topic, {"value": [value] * 4, "partition": [0, 1, 1, 3]}).result()
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=4)
        for value, offset in ((b"2", 0), (b"3", 1)):
            found = producer.send_batch(topic, {"value": [value] * 4, "partition": [0, 1, 1, 3]}).result()
            assert found.offsets.tolist() == [offset, 2 * offset, 2 * offset + 1, offset]
        producer.flush()
        sequences = [seen.headers.get("Logstore-Base-Sequences") for seen in proxy.seen]
    counted = ["0=0,1=0,3=0", "0=1,1=2,3=1"]
    # The store refuses the record for its topic id, and the producer sends it to the new topic.
    assert sequences == ([*counted, "0=2,1=4,3=2", *counted] if idempotent else [None] * 5)
    assert stored(store, topic) == {0: [b"2", b"3"], 1: [b"2", b"2", b"3", b"3"], 3: [b"2", b"3"]}


@pytest.mark.parametrize("idempotent", [True, False])
def test_records_that_may_be_in_the_old_topic_are_not_sent_to_the_new_one(
    store: str, admin: Admin, topic: str, idempotent: bool
) -> None:
    with (
        FaultyProxy(store) as proxy,
        Producer(proxy.url, enable_idempotence=idempotent, retry_backoff_ms=5, retry_backoff_max_ms=5) as producer,
    ):
        producer.send(topic, b"0", partition=0).result()
        proxy.cut().refuse(503, 50301, times=100_000)
        in_doubt = producer.send(topic, b"in doubt", partition=0)
        eventually(lambda: len(proxy.seen) >= 3)
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=4)
        waiting = producer.send(topic, b"1", partition=0)
        proxy._orders.clear()
        with pytest.raises(UnknownTopicIdError, match="may be stored in the deleted one, so it is not sent"):
            in_doubt.result(20)
        assert waiting.result(20).offset == 0
        assert producer.send(topic, b"2", partition=0).result(20).offset == 1
        with pytest.raises(UnknownTopicIdError):
            producer.flush()
    assert stored(store, topic) == {0: [b"1", b"2"]}


def test_partitions_of_the_old_topic_are_not_taken_for_those_of_the_new_one(
    store: str, admin: Admin, topic: str
) -> None:
    with Producer(store) as producer:
        before = producer.send(topic, b"0", key=b"k").result().partition
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=9)
        refused = producer.send(topic, b"1", key=b"k")
        assert isinstance(refused.exception(20), UnknownTopicIdError)
        found = producer.send(topic, b"2", key=b"k").result(20)
        with pytest.raises(UnknownTopicIdError, match="the new topic has 9"):
            producer.flush()
    assert found.partition != before
    assert stored(store, topic) == {found.partition: [b"2"]}
