"""Positions of a consumer, with a fetcher that only remembers its orders."""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest

from logstore.client.consumer.fetcher import CompletedFetch
from logstore.client.consumer.records import FetchedBatch
from logstore.client.consumer.subscription_state import SubscriptionState
from logstore.client.metadata import TopicIdentity, TopicPartition, TopicPartitions
from logstore.errors import InvalidRequestError
from logstore.protocol.messages.topics import Partition, Topic
from logstore.records.schema import LOG_SCHEMA

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class ToldFetcher:
    """A fetcher whose ``reading`` has the partitions that it has to read, with offset and topic id."""

    def __init__(self) -> None:
        self.reading: dict[TopicPartition, tuple[int, str]] = {}
        self.first: CompletedFetch | None = None

    def read(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        self.reading |= {partition: (at, topic_ids[partition.topic]) for partition, at in positions.items()}

    def stop_reading(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.reading.pop(partition, None)

    def begun(self) -> CompletedFetch | None:
        return self.first

    def pop(self) -> None:
        self.first = None


@pytest.fixture
def fetcher() -> ToldFetcher:
    return ToldFetcher()


@pytest.fixture
def state(fetcher: ToldFetcher) -> SubscriptionState:
    return SubscriptionState(fetcher, "latest")  # type: ignore[arg-type]


def topic(topic_id: str, partitions: int = 2, name: str = "orders") -> Topic:
    described = tuple(Partition(at, 1, (), 0, 9, 9, 9, 0, 1, 0, 0, 0) for at in range(partitions))
    return Topic(
        **{field: None for field in Topic.__struct_fields__ if field not in {"name", "topic_id", "partitions"}},
        name=name,
        topic_id=topic_id,
        partitions=described,
    )  # type: ignore[arg-type]


def fetch(partition: TopicPartition, first: int, count: int) -> CompletedFetch:
    offsets = range(first, first + count)
    columns = [pa.array(offsets), pa.array(offsets, pa.timestamp("ms", "UTC")), *(pa.nulls(count),) * 3]
    arrays = [column.cast(field.type) for column, field in zip(columns, LOG_SCHEMA, strict=True)]
    batch = FetchedBatch(*partition, pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA), first + count, 0, 100)
    return CompletedFetch(partition, batch, first + count)


def test_assigned_partitions_are_read_once_they_have_a_position(state: SubscriptionState, fetcher: ToldFetcher):
    state.assign({ZERO, ONE})
    assert (state.unplaced, fetcher.reading) == ({ZERO: "latest", ONE: "latest"}, {})
    state.place({ZERO: 5}, {"orders": topic("a")})
    assert (state.unplaced, fetcher.reading) == ({ONE: "latest"}, {ZERO: (5, "a")})


def test_a_position_follows_what_was_handed_out_of_a_batch(state: SubscriptionState, fetcher: ToldFetcher):
    state.assign({ZERO})
    state.place({ZERO: 5}, {"orders": topic("a")})
    fetcher.first = fetched = fetch(ZERO, 5, 3)
    state.advance(fetched, 2)
    assert (state.position(ZERO), fetcher.first) == (7, fetched)
    state.advance(fetched, 1)
    assert (state.position(ZERO), fetcher.first) == (8, None)


def test_a_paused_partition_continues_after_what_was_handed_out(state: SubscriptionState, fetcher: ToldFetcher):
    state.assign({ZERO, ONE})
    state.place({ZERO: 5, ONE: 1}, {"orders": topic("a")})
    fetcher.first = fetched = fetch(ZERO, 5, 3)
    state.advance(fetched, 1)
    state.pause({ZERO})
    fetcher.first = None
    assert fetcher.reading == {ONE: (1, "a")}
    state.seek(ONE, 3)
    state.resume({ZERO, ONE})
    assert fetcher.reading == {ZERO: (6, "a"), ONE: (3, "a")}


def test_a_topic_made_again_begins_again_and_stays_paused(state: SubscriptionState, fetcher: ToldFetcher):
    state.assign({ZERO, ONE})
    state.place({ZERO: 5, ONE: 1}, {"orders": topic("a")})
    state.pause({ONE})
    assert not state.begin_anew({TopicIdentity("orders", "another")})
    assert state.begin_anew({TopicIdentity("orders", "a")})
    assert (fetcher.reading, state.unplaced) == ({}, {ZERO: "latest", ONE: "latest"})
    state.place({ZERO: 0, ONE: 0}, {"orders": topic("b")})
    assert fetcher.reading == {ZERO: (0, "b")}
    assert state.paused == {ONE}


def test_offsets_of_the_program_are_of_the_topic_that_it_has_seen(state: SubscriptionState, fetcher: ToldFetcher):
    state.assign({ZERO})
    state.place({ZERO: 5}, {"orders": topic("a")})
    state.begin_anew({TopicIdentity("orders", "a")})
    state.place({ZERO: 0}, {"orders": topic("b")})
    assert state.topics_meant([ZERO]) == {"orders": "a"}
    fetcher.first = fetched = fetch(ZERO, 0, 2)
    state.advance(fetched, 1)
    assert state.topics_meant([ZERO]) == {"orders": "b"}


def test_partitions_that_are_added_begin_at_their_first_record(state: SubscriptionState):
    state.subscribe(frozenset({"orders"}))
    state.found_topic("orders", TopicPartitions("a", 1))
    state.place({ZERO: 5}, {"orders": topic("a", 1)})
    state.found_topic("orders", TopicPartitions("a", 2))
    assert state.unplaced == {ONE: "earliest"}


def test_partitions_of_a_topic_made_again_with_more_begin_as_all_do(state: SubscriptionState, fetcher: ToldFetcher):
    state.subscribe(frozenset({"orders"}))
    state.found_topic("orders", TopicPartitions("a", 1))
    state.place({ZERO: 5}, {"orders": topic("a", 1)})
    state.found_topic("orders", TopicPartitions("b", 2))
    assert (fetcher.reading, state.unplaced) == ({}, {ZERO: "latest", ONE: "latest"})


def test_partitions_that_an_assignment_leaves_out_are_forgotten(state: SubscriptionState, fetcher: ToldFetcher):
    state.assign({ZERO, ONE})
    state.place({ZERO: 5, ONE: 1}, {"orders": topic("a")})
    state.pause({ZERO})
    state.assign({ONE})
    assert (state.assignment, state.paused, fetcher.reading) == ({ONE}, set(), {ONE: (1, "a")})
    state.assign(set())
    assert state.positions() == ({}, {})


def test_a_partition_that_is_not_assigned_is_refused(state: SubscriptionState):
    state.assign({ZERO})
    with pytest.raises(InvalidRequestError, match="Partition 1 of topic 'orders' is not assigned"):
        state.require_assigned([ONE])
