"""A group's lag in existing records and in time, and the times of its members' last requests."""

from pathlib import Path

import pyarrow as pa
import pytest

from consumer_offsets.groups import events
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.context import INTERNAL
from logstore.delta.topic_table import RollPart
from logstore.protocol.messages.members import MemberAssignment, Protocol
from logstore.segments.layout import new_layout
from logstore.segments.writer import SegmentWriter
from logstore.table_files import open_table
from tests.support.keyed_topics import KeyedTopic, Record, batch
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import records as records_of
from tests.support.virtual_time import run
from tests.unit.consumer_offsets.test_group_coordinator import new_topic, running


def gaps(data: Path, clock: ManualClock) -> None:
    """Create a topic of which compaction has left offsets 2, 3 and 7 of 0 to 9, a second apart."""
    topic = KeyedTopic.create(data, "t", cleanup_policy="compact")
    now = clock.now_ms()
    rows = batch(0, [Record(b"k", b"%d" % i, now + 1_000 * i) for i in range(10)]).take(pa.array([2, 3, 7]))
    with SegmentWriter(open_table(topic.table.files.uri), 0, 0, 10, 1, layout=new_layout("t")) as writer:
        writer.write(rows)
        segment = writer.finish(((1, 0),))
    assert not topic.table.commit_roll([RollPart(0, 0, 10, 1, (segment,))]).refused


@pytest.mark.parametrize(
    ("committed", "records", "seconds"), [(0, 3, 98), (2, 3, 98), (3, 2, 97), (4, 1, 93), (8, 0, 0)]
)
def test_records_that_compaction_left_count_and_the_oldest_says_how_late(
    tmp_path: Path, committed: int, records: int, seconds: int
) -> None:
    clock = ManualClock()
    gaps(tmp_path, clock)

    async def scenario() -> None:
        async with running(tmp_path, clock=clock) as (broker, groups):
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, committed)])
            clock.advance(100_000)
            (lag,) = await groups.fetch_lag_in_records(INTERNAL, "g")
            assert (lag.lag, lag.records_behind, lag.lag_ms) == (10 - committed, records, 1_000 * seconds)
            keyed = records_of([b"x", b"y"], keys=[b"a", b"b"])
            await broker.produce.records.produce(
                INTERNAL, broker.topics.served.topic(INTERNAL, "t"), keyed, partition=0
            )
            (lag,) = await groups.fetch_lag_in_records(INTERNAL, "g")
            assert (lag.lag, lag.records_behind, lag.lag_ms) == (12 - committed, records + 2, 1_000 * seconds)

    run(scenario())


def test_a_topic_that_was_emptied_holds_nobody_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
            await broker.topics.tables.delete_records(INTERNAL, broker.topics.served.topic(INTERNAL, "t"), 0, 5)
            first, second = await groups.fetch_lag_in_records(INTERNAL, "g")
            assert (first.lag, first.records_behind, first.lag_ms) == (4, 0, 0)
            assert (second.lag, second.records_behind) == (5, 5)
            assert second.lag_ms is not None

    run(scenario())


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_member_is_described_with_its_last_heartbeat_and_poll(tmp_path: Path, kind: str) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with running(tmp_path, clock=clock, group_initial_rebalance_delay_ms=0) as (broker, groups):
            await new_topic(broker)
            members = groups.members

            async def beat(epoch: int, since_poll_ms: int | None) -> int:
                if kind == "classic":
                    await members.heartbeat(
                        INTERNAL,
                        "g",
                        events.Heartbeat(
                            request=0,
                            member_id="m",
                            generation=epoch,
                            group_instance_id=None,
                            since_poll_ms=since_poll_ms,
                        ),
                    )
                    return epoch
                event = events.ConsumerGroupHeartbeat(
                    0, "m", epoch, rebalance_timeout_ms=60_000, subscribed_topics=frozenset({"t"}),
                    owned=frozenset(), since_poll_ms=since_poll_ms,
                )  # fmt: skip
                return (await members.consumer_heartbeat(INTERNAL, "g", event)).member_epoch

            def told() -> tuple[int | None, int | None]:
                (member,) = groups.describe(INTERNAL, "g").members
                return member.since_heartbeat_ms, member.since_poll_ms

            if kind == "classic":
                protocols = (Protocol("range", b""),)
                event = events.JoinGroup(
                    request=0,
                    member_id="m",
                    new_member_id="m",
                    protocol_type="consumer",
                    protocols=protocols,
                    session_timeout_ms=60_000,
                    rebalance_timeout_ms=60_000,
                    requires_known_member_id=False,
                )
                epoch = (await members.join(INTERNAL, "g", event)).generation
                await members.sync(
                    INTERNAL,
                    "g",
                    events.SyncGroup(
                        request=0, member_id="m", generation=epoch, assignments=(MemberAssignment("m", b""),)
                    ),
                )
            else:
                epoch = await beat(0, None)
            assert told() == (0, None)
            clock.advance(2_000)
            await beat(epoch, 500)
            clock.advance(1_000)
            assert told() == (1_000, 1_500)
            await beat(epoch, None)
            assert told() == (0, 1_500)

    run(scenario())
