"""The tasks of a query read the tail of a DataFrame from the leaders of the partitions."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from logstore import errors
from logstore.spark import tail_reader
from logstore.spark.tail_reader import Leader, TopicGoneError
from tests.support.played_cluster import NOBODY, PlayedCluster


@pytest.fixture
def cluster() -> Iterator[PlayedCluster]:
    with PlayedCluster() as cluster:
        for number in range(3):
            cluster.append([b"%d" % number] * 3, partition=number)
        yield cluster


def values(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_each_range_is_read_from_the_leader_of_its_partition(cluster: PlayedCluster):
    read = tail_reader.tail_reader(
        (cluster.bootstrap,), "t", "id-of-t", [(number, 0, 3) for number in range(3)], "spark"
    )
    assert sorted(values(read(iter([pa.record_batch({"id": [0, 1, 2]})])))) == sorted([b"0", b"1", b"2"] * 3)
    assert sorted((r.broker, r.never) for r in cluster.asked("/fetch")) == [(1, True), (2, True), (3, True)]
    assert len(cluster.asked("/metadata")) == 1


def test_a_leader_that_moves_or_dies_is_left(cluster: PlayedCluster):
    leader = Leader((cluster.bootstrap,), "t", "id-of-t", "spark", retry_seconds=20)
    assert values(leader.records(0, 0, 3)) == [b"0"] * 3
    cluster.lead(2)
    assert values(leader.records(0, 1, 3)) == [b"0"] * 2
    cluster.kill(1)
    cluster.lead(NOBODY)
    refused = [0]

    def elect(_: object) -> None:
        refused[0] += 1
        if refused[0] == 3:
            cluster.lead(3)

    cluster.before = elect
    assert values(leader.records(0, 0, 3)) == [b"0"] * 3
    leader.close()


def test_a_leader_that_has_not_heard_of_the_topic_is_asked_again_and_one_without_it_is_not(cluster: PlayedCluster):
    left = [errors.UnknownTopicError("Topic 't' not found.")] * 2
    cluster.before = lambda request: left.pop() if request.path == "/fetch" and left else None
    leader = Leader((cluster.bootstrap,), "t", "id-of-t", "spark", retry_seconds=20)
    assert values(leader.records(1, 0, 3)) == [b"1"] * 3
    with cluster.lock:
        del cluster.topics["t"]
    with pytest.raises(TopicGoneError):
        values(leader.records(1, 0, 3))
    leader.close()
