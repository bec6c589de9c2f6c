"""A consumer group reads a real store with Spark: from its committed offsets to the end, each record once."""

import contextlib
import logging

import pytest

from logstore.client.admin import Admin
from logstore.errors import (
    InvalidGroupError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownGroupError,
    UnknownTopicError,
)
from logstore.spark import group_read
from logstore.spark.group_reader import NoCommittedOffsetError

pytestmark = pytest.mark.spark


@pytest.fixture
def admin(store):
    with Admin(store.url) as admin:
        yield admin


def committed(admin: Admin, group: str) -> dict[tuple[str, int], int]:
    try:
        return {(o.topic, o.partition): o.offset for o in admin.group_offsets(group)}
    except UnknownGroupError:
        return {}


def places(frame) -> list[tuple[str, int, int]]:
    return [tuple(row) for row in frame.select("topic", "partition", "offset").collect()]


def spans(batch) -> dict[tuple[str, int], tuple[int, int]]:
    return {(r.topic, r.partition): (r.start, r.end) for r in batch.ranges}


def test_batches_are_every_record_once_in_history_and_tail_of_several_topics(spark, store, admin):
    one, other = store.create("group-one", 2), store.create("group-other")
    store.produce(one, 0, 0, 60)
    store.roll(one)
    store.produce(one, 0, 60, 80)
    store.produce(one, 1, 0, 3)
    store.produce(other, 0, 0, 40)
    seen = []
    for number in range(9):
        with group_read(spark, [one, other], "several", store.url, max_offsets_per_trigger=80) as batch:
            if batch.is_empty:
                break
            read = places(batch.df)
            assert len(read) <= 80
            assert len(read) == sum(end - start for start, end in spans(batch).values())
            seen += read
            if number == 0:
                # Records produced after the batch was planned belong to the next one.
                store.produce(one, 1, 3, 5)
                first = {place: end for place, (_, end) in spans(batch).items()}
        if number == 0:
            assert committed(admin, "several") == first
    assert number == 2
    everything = [(one, 0, n) for n in range(80)] + [(one, 1, n) for n in range(5)] + [(other, 0, n) for n in range(40)]
    assert sorted(seen) == everything
    assert committed(admin, "several") == {(one, 0): 80, (one, 1): 5, (other, 0): 40}
    assert set(batch.df.columns) == {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}


def test_a_failed_batch_is_read_again_and_an_explicit_commit_counts_at_once(spark, store, admin):
    topic = store.create("group-failing")
    store.produce(topic, 0, 0, 10)
    for is_committed in (False, True):
        with (
            contextlib.suppress(ZeroDivisionError),
            group_read(spark, topic, "failing", store.url) as batch,
        ):
            assert spans(batch) == {(topic, 0): (0, 10)}
            if is_committed:
                batch.commit()
            _ = 1 / 0
        assert committed(admin, "failing") == ({(topic, 0): 10} if is_committed else {})
    store.produce(topic, 0, 10, 12)
    with group_read(spark, topic, "failing", store.url) as batch:
        assert places(batch.df) == [(topic, 0, 10), (topic, 0, 11)]
        batch.commit()
        admin.commit_offsets("failing", {(topic, 0): 5})
    # The batch was committed already: the end of the block does not overwrite a later commit.
    assert committed(admin, "failing") == {(topic, 0): 5}


def test_the_start_of_a_partition_without_a_committed_offset(spark, store, admin):
    topic = store.create("group-new")
    store.produce(topic, 0, 0, 10)
    with pytest.raises(NoCommittedOffsetError, match=r"group-new, partition 0: there is no committed offset"):
        group_read(spark, topic, "new", store.url, auto_offset_reset="none")
    with group_read(spark, topic, "new", store.url, auto_offset_reset="latest") as batch:
        assert batch.is_empty
    store.produce(topic, 0, 10, 12)
    admin.add_partitions(topic, 2)
    store.produce(topic, 1, 0, 3)
    with group_read(spark, topic, "new", store.url) as batch:
        assert spans(batch) == {(topic, 0): (10, 12), (topic, 1): (0, 3)}


def test_a_committed_offset_that_the_log_start_has_passed(spark, store, admin, caplog):
    topic = store.create("group-passed")
    store.produce(topic, 0, 0, 50)
    admin.commit_offsets("passed", {(topic, 0): 10})
    admin.delete_records(topic, 0, 20)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"offset 10 is out of range, valid are 20 to 49, and 50 is the end"
    ) as raised:
        group_read(spark, topic, "passed", store.url, auto_offset_reset="none")
    assert (raised.value.log_start_offset, raised.value.high_watermark) == (20, 50)
    assert spans(group_read(spark, topic, "passed", store.url, auto_offset_reset="latest")) == {(topic, 0): (50, 50)}
    caplog.clear()
    with group_read(spark, topic, "passed", store.url) as batch:
        assert [offset for _, _, offset in sorted(places(batch.df))] == list(range(20, 50))
    assert "topic group-passed, partition 0: committed offset 10 is out of range" in caplog.text
    assert committed(admin, "passed") == {(topic, 0): 50}


def test_a_topic_of_the_same_name_inherits_nothing(spark, store, admin):
    topic = store.create("group-reborn")
    store.produce(topic, 0, 0, 10)
    with group_read(spark, topic, "reborn", store.url):
        pass
    before = group_read(spark, topic, "reborn", store.url)
    store.produce(topic, 0, 10, 12)
    overtaken = group_read(spark, topic, "reborn", store.url)
    store.delete(topic)
    store.create(topic)
    store.produce(topic, 0, 0, 20)
    before.commit()  # it has read nothing
    with pytest.raises(UnknownTopicError, match="deleted and made again since this batch was made"):
        overtaken.commit()
    assert committed(admin, "reborn") == {}
    assert spans(group_read(spark, topic, "reborn", store.url)) == {(topic, 0): (0, 20)}


@pytest.mark.long
def test_storage_alone_continues_from_what_is_rolled_and_commits_nothing(spark, store, admin, caplog):
    topic, reborn = store.create("group-stored", 2), store.create("group-stored-reborn")
    data = store.server.data
    store.produce(topic, 0, 0, 30)
    store.produce(topic, 1, 0, 10)
    store.produce(reborn, 0, 0, 10)
    for offset in (25, 12):
        admin.commit_offsets("stored", {(topic, 0): offset, (topic, 1): 10, (reborn, 0): 5})
    admin.commit_offsets("taken-back", {(topic, 0): 1})
    admin.delete_group("taken-back")
    store.roll(topic)
    store.produce(topic, 0, 30, 40)
    admin.commit_offsets("stored-ahead", {(topic, 0): 35})
    store.roll("__consumer_offsets")
    # An offset ahead of the sealed offset is not out of range.
    assert spans(group_read(spark, topic, "stored-ahead", storage=data))[topic, 0] == (35, 35)
    assert spans(group_read(spark, topic, "taken-back", storage=data))[topic, 0] == (0, 30)
    # The tombstones of the first topic's offsets are not rolled yet.
    store.delete(reborn)
    store.create(reborn)
    store.produce(reborn, 0, 0, 10)
    store.roll(reborn)
    with caplog.at_level(logging.WARNING), group_read(spark, [topic, reborn], "stored", storage=data) as batch:
        assert spans(batch) == {(topic, 0): (12, 30), (topic, 1): (10, 10), (reborn, 0): (0, 10)}
        assert len(places(batch.df)) == 28
    assert "group stored reads from storage alone" in caplog.text
    assert committed(admin, "stored") == {(topic, 0): 12, (topic, 1): 10}
    with pytest.raises(InvalidRequestError, match="cannot be committed; to commit, give bootstrap="):
        batch.commit()


def test_without_any_group_storage_begins_at_the_beginning(spark, topic):
    written = topic(2)
    written.roll(0, 0, 50)
    assert spans(group_read(spark, written.name, "none-yet", storage=written.data)) == {
        (written.name, 0): (0, 50),
        (written.name, 1): (0, 0),
    }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"topics": []}, InvalidRequestError, "at least one topic"),
        ({"topics": ["a", "a"]}, InvalidRequestError, "each one once"),
        ({"topics": "no such"}, Exception, "cannot be a topic's name"),
        ({"topics": "nowhere"}, UnknownTopicError, "nowhere"),
        ({"group": "\ud800"}, InvalidGroupError, "cannot be a group's name"),
        ({"auto_offset_reset": "first"}, InvalidRequestError, '"earliest", "latest" or "none"'),
        ({"max_offsets_per_trigger": 0}, InvalidRequestError, "a number from 1"),
        ({"storage": "data"}, InvalidRequestError, "not both"),
    ],
)
def test_arguments_that_cannot_be(spark, store, arguments, error, message):
    store_arguments = {"topics": "any", "group": "any", "bootstrap": store.url}
    with pytest.raises(error, match=message):
        group_read(spark, **{**store_arguments, **arguments})
