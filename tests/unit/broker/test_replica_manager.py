"""Replication between brokers in one process, with real journals, real tables and real partition logs."""

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.elsewhere.partition_offsets import known_end
from logstore.broker.fetch.purgatory import WantedPartition
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import (
    ClusterStateError,
    FencedLeaderEpochError,
    LogStoreError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
)
from logstore.log.partition_log import PartitionLog
from logstore.records.batch_identity import ProducerIdentity
from tests.support.eventually import eventually_async
from tests.support.replicas import MemoryCluster, running_cluster
from tests.support.running_broker import produce, read_all, records
from tests.support.virtual_time import run


def log_of(broker: Broker, partition: int = 0) -> PartitionLog:
    return broker.topics.served.topic(INTERNAL, "t").partition(partition)


def topic_id(cluster: MemoryCluster):
    return next(iter(cluster.brokers.values())).topics.served.topic(INTERNAL, "t").topic_id


async def all_have(cluster: MemoryCluster, end: int) -> None:
    """Wait until every replica has the records below ``end``, and knows that all have them."""
    await eventually_async(
        lambda: all(
            (log_of(b).log_end_offset, log_of(b).high_watermark) == (end, end) for b in cluster.brokers.values()
        ),
        "not replicated",
    )


async def all_follow(cluster: MemoryCluster) -> None:
    """Wait until all replicas fetch and are in the ISR of broker 1; one that starts slowly may have left it before."""
    followers = log_of(cluster.brokers[1]).require_leader().in_sync_replicas.followers.values()
    (state_of,) = [partition for partition in cluster.states if partition[1] == 0]
    await eventually_async(
        lambda: (
            set(cluster.states[state_of].in_sync_replicas) == set(cluster.brokers)
            and all(one.position >= 0 for one in followers)
        ),
        "not all in sync",
    )


def test_an_acknowledged_record_is_on_all_replicas_and_the_next_leader_has_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, 3) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            for n in range(5):
                await produce(leader, topic, [b"%d" % n])
            assert all(log_of(b).log_end_offset == 5 for b in cluster.brokers.values()), "acknowledged by all"
            await all_have(cluster, 5)
            with pytest.raises(NotLeaderOrFollowerError):
                await produce(cluster.brokers[2], cluster.brokers[2].topics.served.topic(INTERNAL, "t"), [b"x"])
            cluster.elect(topic.topic_id, 0, 2)
            second = cluster.brokers[2]
            assert await produce(second, second.topics.served.topic(INTERNAL, "t"), [b"5"]) == 5
            await all_have(cluster, 6)
            found = await read_all(second, second.topics.served.topic(INTERNAL, "t"))
            assert found == [(n, b"%d" % n) for n in range(6)]
            with pytest.raises(NotLeaderOrFollowerError):
                await produce(leader, topic, [b"x"])

    run(scenario())


def test_records_that_are_not_on_all_replicas_are_not_shown_and_are_truncated_by_the_next_leader(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            first, second = cluster.brokers.values()
            topic = first.topics.served.topic(INTERNAL, "t")
            await produce(first, topic, [b"a"])
            await all_have(cluster, 1)
            cluster.cut.add((2, 1))
            with pytest.raises(RequestTimedOutError):
                await first.produce.records.produce(INTERNAL, topic, records([b"lost"]), partition=0, timeout_ms=100)
            await eventually_async(lambda: log_of(first).log_end_offset == 2, "not durable")
            assert (log_of(first).log_end_offset, log_of(first).high_watermark) == (2, 1)
            assert await read_all(first, topic) == [(0, b"a")]
            cluster.elect(topic.topic_id, 0, 2)
            await produce(second, second.topics.served.topic(INTERNAL, "t"), [b"b"])
            await all_have(cluster, 2)
            cluster.elect(topic.topic_id, 0, 1)
            await all_have(cluster, 2)
            assert await read_all(first, topic) == [(0, b"a"), (1, b"b")]

    run(scenario())


def test_a_follower_that_stays_behind_leaves_the_isr_and_joins_it_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, 3, replica_lag_time_max_ms=1_000) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await all_follow(cluster)
            await produce(leader, topic, [b"a"])
            cluster.cut.add((3, 1))
            await leader.produce.records.produce(INTERNAL, topic, records([b"b"]), partition=0, timeout_ms=10_000)
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1, 2), "not shrunk")
            cluster.cut.clear()
            await eventually_async(
                lambda: set(cluster.states[topic.topic_id, 0].in_sync_replicas) == {1, 2, 3}, "not joined"
            )
            await all_have(cluster, 2)
            # On a slow machine both may fall behind together, and come back one by one.
            assert 1 <= leader.replica_manager.isr_shrinks <= leader.replica_manager.isr_expands

    run(scenario())


def test_fewer_replicas_than_min_insync_replicas_take_no_append_with_acks_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        configs = {"min.insync.replicas": "2"}
        async with running_cluster(tmp_path, 1, 2, configs=configs, replica_lag_time_max_ms=1_000) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await all_follow(cluster)
            await produce(leader, topic, [b"a"])
            cluster.cut.add((2, 1))
            await leader.produce.records.produce(INTERNAL, topic, records([b"b"]), partition=0, acks=1)
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1,), "not shrunk")
            assert log_of(leader).high_watermark == 1, "KIP-966"
            result = await leader.produce.records.produce(INTERNAL, topic, records([b"c"]), partition=0)
            assert isinstance(result.partitions[0].error, NotEnoughReplicasError)
            assert log_of(leader).log_end_offset == 2
            await leader.produce.records.produce(INTERNAL, topic, records([b"c"]), partition=0, acks=1)
            cluster.cut.clear()
            await all_have(cluster, 3)

    run(scenario())


def test_a_replica_that_lacks_what_was_rolled_begins_at_the_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, replica_lag_time_max_ms=200) as cluster:
            leader, behind = cluster.brokers.values()
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            cluster.cut.add((2, 1))
            await produce(leader, topic, [b"b", b"c"])
            await leader.topics.tables.roll(INTERNAL, topic)
            await produce(leader, topic, [b"d"])
            cluster.cut.clear()
            await all_have(cluster, 4)
            assert log_of(behind).sealed_offset == 3
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1, 2), "not joined")
            cluster.elect(topic.topic_id, 0, 2)
            await produce(behind, behind.topics.served.topic(INTERNAL, "t"), [b"e"])
            assert [v for _, v in await read_all(behind, behind.topics.served.topic(INTERNAL, "t"))] == [
                b"a",
                b"b",
                b"c",
                b"d",
                b"e",
            ]
            cluster.elect(topic.topic_id, 0, 1)  # a broker gives up its leadership before it starts
            await cluster.stop(2)
            again = await cluster.start(2)
            cluster.elect(topic.topic_id, 0, 2)
            await all_have(cluster, 5)
            assert [v for _, v in await read_all(again, again.topics.served.topic(INTERNAL, "t"))] == [
                b"a",
                b"b",
                b"c",
                b"d",
                b"e",
            ]

    run(scenario())


def test_followers_free_what_the_leader_has_sealed_and_a_new_leader_reads_it_from_the_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader, second = cluster.brokers.values()
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a", b"b"])
            await leader.topics.tables.roll(INTERNAL, topic)
            await eventually_async(lambda: log_of(second).sealed_offset == 2, "not sealed at the follower")
            assert second.journal.needed_bytes == 0 or len(log_of(second).index) == 0
            cluster.elect(topic.topic_id, 0, 2)
            assert await read_all(second, second.topics.served.topic(INTERNAL, "t")) == [(0, b"a"), (1, b"b")]

    run(scenario())


async def _nothing() -> None: ...


def test_a_new_leader_reports_no_end_before_its_followers_have_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            first, second = cluster.brokers.values()
            topic = second.topics.served.topic(INTERNAL, "t")
            await produce(first, first.topics.served.topic(INTERNAL, "t"), [b"a"])
            monkeypatch.setattr(first._schedule, "roll_at_stop", _nothing)
            await cluster.stop(1)
            cluster.cut.add((1, 2))
            cluster.elect(topic.topic_id, 0, 2)
            leadership = log_of(second).require_leader()
            if log_of(second).high_watermark < 1:
                with pytest.raises(OffsetNotAvailableError):
                    leadership.require_settled()
                assert not log_of(second).has_unsealed
                # A fetch that gets enough from other partitions skips this one, and must not return its end.
                assert WantedPartition(topic, log_of(second), log_of(second).high_watermark).has_news
            await cluster.start(1)
            cluster.cut.clear()
            await all_have(cluster, 1)
            leadership.require_settled()
            assert log_of(second).has_unsealed

    run(scenario())


def test_an_unclean_leader_reads_the_table_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, replica_lag_time_max_ms=200) as cluster:
            first, second = cluster.brokers.values()
            topic = first.topics.served.topic(INTERNAL, "t")
            await produce(first, topic, [b"a"])
            await all_have(cluster, 1)
            cluster.cut.add((2, 1))
            await produce(first, topic, [b"b"])
            await first.topics.tables.roll(INTERNAL, topic)
            await produce(first, topic, [b"lost"])
            await cluster.stop(1)
            state = cluster.elect(topic.topic_id, 0, 2, in_sync_replicas=(2,), recovering=True)
            with pytest.raises(NotLeaderOrFollowerError):
                second.topics.served.topic(INTERNAL, "t").partition(0).require_leader()
            await eventually_async(lambda: not cluster.states[topic.topic_id, 0].recovering, "not recovered")
            assert cluster.states[topic.topic_id, 0].leader_epoch == state.leader_epoch
            mine = second.topics.served.topic(INTERNAL, "t")
            at = await produce(second, mine, [b"c"])
            found = await read_all(second, mine)
            assert found[:2] == [(0, b"a"), (1, b"b")], "what the table has, it keeps"
            assert found[-1] == (at, b"c")

    run(scenario())


def test_an_isr_whose_write_is_open_counts_until_it_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, replica_lag_time_max_ms=1_000) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await all_follow(cluster)
            await produce(leader, topic, [b"a"])
            cluster.without_zookeeper.add(1)
            cluster.cut.add((2, 1))
            waiting = asyncio.create_task(leader.produce.records.produce(INTERNAL, topic, records([b"b"]), partition=0))
            await asyncio.sleep(3)
            assert not waiting.done(), "broker 2 may be in the ISR still"
            cluster.without_zookeeper.clear()
            await waiting
            assert cluster.states[topic.topic_id, 0].in_sync_replicas == (1,)

    run(scenario())


def test_a_broker_that_is_no_replica_any_more_frees_its_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader, second = cluster.brokers.values()
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            state = cluster.states[topic.topic_id, 0]
            cluster.set(topic.topic_id, 0, dataclasses.replace(state, replicas=(1,), in_sync_replicas=(1,)))
            await eventually_async(lambda: log_of(second).log_end_offset == 0, "not dropped")
            # The frame that drops the records reaches the log in one step, and the journal in the next.
            await eventually_async(lambda: not second.journal.needed_bytes, "not freed")
            assert await produce(leader, topic, [b"b"]) == 1
            cluster.set(topic.topic_id, 0, dataclasses.replace(state, in_sync_replicas=(1,)))
            await all_have(cluster, 2)

    run(scenario())


def test_followers_that_catch_up_while_the_isr_is_being_changed_join_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, 3) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            cluster.without_zookeeper.add(1)
            cluster.elect(topic.topic_id, 0, 1, in_sync_replicas=(1,))
            followers = log_of(leader).require_leader().in_sync_replicas.followers.values()
            await eventually_async(lambda: all(one.position == 1 for one in followers), "no position")
            cluster.without_zookeeper.clear()
            await eventually_async(
                lambda: set(cluster.states[topic.topic_id, 0].in_sync_replicas) == {1, 2, 3}, "not joined"
            )

    run(scenario())


def test_an_isr_change_that_is_refused_ends_only_the_epoch_that_asked_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            asked, answered = asyncio.Event(), asyncio.Event()

            async def refused(*_: object, **__: object) -> PartitionState:
                asked.set()
                await answered.wait()
                raise FencedLeaderEpochError("another leader")

            cluster_state = cluster.cluster_states[1]
            alter, cluster_state.alter_partition = cluster_state.alter_partition, refused
            cluster.elect(topic.topic_id, 0, 1, in_sync_replicas=(1,))
            await asked.wait()
            cluster_state.alter_partition = alter
            cluster.elect(topic.topic_id, 0, 2, in_sync_replicas=(1, 2))
            cluster.elect(topic.topic_id, 0, 1)
            answered.set()
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)

    run(scenario())


def test_a_replica_whose_journal_ends_before_the_table_knows_the_tables_leaders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, replica_lag_time_max_ms=200) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await cluster.stop(2)  # its snapshot names no leader
            await produce(leader, topic, [b"a"])
            await leader.topics.tables.roll(INTERNAL, topic)
            cluster.cut.add((2, 1))
            again = await cluster.start(2)
            assert log_of(again).log_end_offset == 1
            assert log_of(again).state.leader_epochs.entries == log_of(leader).state.leader_epochs.entries != ()

    run(scenario())


def test_an_unclean_leader_drops_a_tail_that_was_written_over_another_history(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, replica_lag_time_max_ms=200) as cluster:
            first, second = cluster.brokers.values()
            topic = second.topics.served.topic(INTERNAL, "t")
            await produce(first, first.topics.served.topic(INTERNAL, "t"), [b"a"])
            await all_have(cluster, 1)
            cluster.cut.update({(1, 2), (2, 1)})
            cluster.elect(topic.topic_id, 0, 2, in_sync_replicas=(2,))
            await produce(second, topic, [b"b"])
            await produce(second, topic, [b"c"])
            cluster.elect(topic.topic_id, 0, -1)  # a broker that leads nothing rolls nothing when it stops
            await cluster.stop(2)
            cluster.elect(topic.topic_id, 0, 1, in_sync_replicas=(1,), recovering=True)
            await eventually_async(lambda: log_of(first).is_leader, "not recovered")
            await produce(first, first.topics.served.topic(INTERNAL, "t"), [b"x"])
            await first.topics.tables.roll(INTERNAL, first.topics.served.topic(INTERNAL, "t"))
            cluster.elect(topic.topic_id, 0, -1)
            await cluster.stop(1)
            second = await cluster.start(2)
            assert (log_of(second).sealed_offset, log_of(second).log_end_offset) == (2, 3)
            cluster.elect(topic.topic_id, 0, 2, in_sync_replicas=(2,), recovering=True)
            await eventually_async(lambda: log_of(second).is_leader, "not recovered")
            assert await read_all(second, second.topics.served.topic(INTERNAL, "t")) == [(0, b"a"), (1, b"x")]

    run(scenario())


def test_a_follower_that_may_join_counts_for_the_high_watermark_at_once(tmp_path: Path) -> None:
    """Count the follower before a task writes the ISR: records acknowledged meanwhile must be on it."""

    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            cluster.cut.add((2, 1))
            cluster.elect(topic.topic_id, 0, 1, in_sync_replicas=(1,))
            role = log_of(leader).require_leader()
            role.fetched(2, 1, 0, 0.0)
            leader.replica_manager.followed(log_of(leader), 2)
            assert role.in_sync_replicas.proposed == (1, 2)

    run(scenario())


def test_a_follower_that_may_not_join_keeps_no_other_out_and_costs_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, 3) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            # It has lost ZooKeeper, but not its leader.
            cluster.unregistered.add(3)
            cluster.without_zookeeper.add(1)
            cluster.elect(topic.topic_id, 0, 1, in_sync_replicas=(1,))
            followers = log_of(leader).require_leader().in_sync_replicas.followers.values()
            await eventually_async(lambda: all(one.position == 1 for one in followers), "no position")
            cluster.without_zookeeper.clear()
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1, 2), "not joined")
            asked = cluster.isr_changes
            await asyncio.sleep(0.6)
            assert cluster.isr_changes == asked, "nothing is asked for that would be refused"
            cluster.unregistered.clear()
            cluster.tell_of_brokers()
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1, 2, 3), "stays out")

    run(scenario())


def test_a_follower_that_is_cut_off_is_not_taken_back_while_too_few_are_in_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        configs = {"min.insync.replicas": "2"}
        async with running_cluster(tmp_path, 1, 2, configs=configs, replica_lag_time_max_ms=1_000) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await all_follow(cluster)
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            cluster.cut.add((2, 1))
            await leader.produce.records.produce(INTERNAL, topic, records([b"b"]), partition=0, acks=1)
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1,), "not shrunk")
            shrinks = leader.replica_manager.isr_shrinks
            await asyncio.sleep(3)
            assert cluster.states[topic.topic_id, 0].in_sync_replicas == (1,)
            assert leader.replica_manager.isr_shrinks == shrinks

    run(scenario())


def test_a_new_leader_learns_of_deleted_records_from_the_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader, second = cluster.brokers.values()
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a", b"b"])
            await leader.topics.tables.roll(INTERNAL, topic)
            await eventually_async(lambda: log_of(second).sealed_offset == 2, "not sealed at the follower")
            await second.topics.tables.refresh(INTERNAL, second.topics.served.topic(INTERNAL, "t"))
            await second._schedule.stop()  # it would look at tables
            cluster.cut.add((2, 1))
            await asyncio.sleep(0.1)
            assert await leader.topics.tables.delete_records(INTERNAL, topic, 0, 2) == 2
            assert log_of(second).log_start_offset == 0
            cluster.elect(topic.topic_id, 0, 2)
            await eventually_async(lambda: log_of(second).log_start_offset == 2, "not learned")

    run(scenario())


def test_records_are_shown_once_min_insync_replicas_is_lowered(tmp_path: Path) -> None:
    async def scenario() -> None:
        configs = {"min.insync.replicas": "2"}
        async with running_cluster(tmp_path, 1, 2, configs=configs, replica_lag_time_max_ms=1_000) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await all_follow(cluster)
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            cluster.cut.add((2, 1))
            await leader.produce.records.produce(INTERNAL, topic, records([b"b"]), partition=0, acks=1)
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1,), "not shrunk")
            assert log_of(leader).high_watermark == 1
            await leader.topics.changes.alter_configs(INTERNAL, "t", {"min.insync.replicas": "1"})
            assert log_of(leader).high_watermark == 2

    run(scenario())


def test_a_damaged_document_is_asked_for_again_after_a_pause(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            await produce(leader, topic, [b"a"])
            await all_have(cluster, 1)
            asked = []
            cluster_state = cluster.cluster_states[1]

            async def damaged(*_: object, **__: object) -> PartitionState:
                asked.append(1)
                await asyncio.sleep(0.001)
                raise ClusterStateError("edited by hand")

            alter, cluster_state.alter_partition = cluster_state.alter_partition, damaged
            cluster.elect(topic.topic_id, 0, 1, in_sync_replicas=(1,))
            await eventually_async(lambda: asked, "not asked for")
            await asyncio.sleep(0.5)
            assert len(asked) <= 4
            cluster_state.alter_partition = alter
            await eventually_async(lambda: cluster.states[topic.topic_id, 0].in_sync_replicas == (1, 2), "not joined")

    run(scenario())


@pytest.mark.parametrize("known_by", ["the journal", "the table"])
def test_an_epoch_from_an_older_state_of_zookeeper_is_not_led(tmp_path: Path, known_by: str) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            topic = cluster.brokers[1].topics.served.topic(INTERNAL, "t")
            old = cluster.states[topic.topic_id, 0]
            cluster.elect(topic.topic_id, 0, 1)
            newest = cluster.elect(topic.topic_id, 0, 1)
            await produce(cluster.brokers[1], topic, [b"a"])
            await all_have(cluster, 1)
            await cluster.brokers[1].topics.tables.roll(INTERNAL, topic)
            for broker in (1, 2):
                await cluster.stop(broker)
            cluster.states[topic.topic_id, 0] = dataclasses.replace(old, leader=2)
            if known_by == "the table":
                shutil.rmtree(tmp_path / "brokers/2")
            (second,) = [await cluster.start(2)]
            assert not log_of(second).is_leader
            with pytest.raises(NotLeaderOrFollowerError):
                await produce(second, second.topics.served.topic(INTERNAL, "t"), [b"x"])
            cluster.set(topic.topic_id, 0, dataclasses.replace(newest, leader=2, leader_epoch=newest.leader_epoch + 1))
            assert log_of(second).is_leader

    run(scenario())


def test_a_leader_without_a_lease_reports_nothing_that_another_leader_may_contradict(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, 3) as cluster:
            zombie, second = cluster.brokers[1], cluster.brokers[2]
            topic = zombie.topics.served.topic(INTERNAL, "t")
            await produce(zombie, topic, [b"0"])
            await all_have(cluster, 1)
            log = log_of(zombie)
            cluster.cluster_states[1].has_lease = False
            for _ in range(20):
                assert await read_all(zombie, topic) == [(0, b"0")], "ZooKeeper alone is away: reads go on"
                await asyncio.sleep(0.01)
            assert zombie.not_ready_reason is None
            # Another broker leads, and this one is not notified.
            before = cluster.states[topic.topic_id, 0]
            state = dataclasses.replace(before, leader=2, leader_epoch=log.leader_epoch + 1, in_sync_replicas=(2, 3))
            cluster.states[topic.topic_id, 0] = state
            cluster.cluster_states[2].tell(topic.topic_id, 0, state)
            await eventually_async(lambda: not log.is_settled, "the follower does not say that it follows no more")
            assert log.is_leader
            with pytest.raises(NotLeaderOrFollowerError, match="another one may lead"):
                await read_all(zombie, topic)
            assert "other brokers may lead its partitions" in str(zombie.not_ready_reason)
            assert known_end(log, {}) is None
            cluster.cluster_states[3].tell(topic.topic_id, 0, state)
            await produce(second, second.topics.served.topic(INTERNAL, "t"), [b"1"])
            cluster.cluster_states[1].tell(topic.topic_id, 0, state)
            await all_have(cluster, 2)
            assert zombie.not_ready_reason is None, "it knows who leads"

    run(scenario())


def test_a_leader_without_a_lease_whose_follower_is_silent_reports_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            leader = cluster.brokers[1]
            await produce(leader, leader.topics.served.topic(INTERNAL, "t"), [b"0"])
            await all_have(cluster, 1)
            log = log_of(leader)
            follower = log.followers[2]
            cluster.cut.add((2, 1))
            await eventually_async(lambda: follower.wake is None, "the session goes on")
            assert log.is_settled, "nobody else leads as long as there is a lease"
            cluster.cluster_states[1].has_lease = False
            assert not log.is_settled
            in_sync = log.require_leader().in_sync_replicas
            assert in_sync is not None
            follower.wake = lambda: None  # a silent session
            assert in_sync.all_fetch(follower.fetched_at)
            assert not in_sync.all_fetch(follower.fetched_at + 0.001)
            in_sync.committed = (1,)
            assert log.is_settled, "only an unclean election gives the partition another leader"

    run(scenario())


def test_a_leader_that_was_replaced_ends_no_producer(tmp_path: Path) -> None:
    """Send to a replaced leader, which lacks its successor's records: its error must not make a producer start again
    and write duplicates.
    """

    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2) as cluster:
            replaced = cluster.brokers[1]
            topic = replaced.topics.served.topic(INTERNAL, "t")
            producer_id, _ = await replaced.produce.records.init_producer(INTERNAL)

            async def sent(sequence: int) -> LogStoreError | None:
                identity = ProducerIdentity(producer_id, 0, {0: sequence})
                result = await replaced.produce.records.produce(
                    INTERNAL, topic, records([b"x"]), partition=0, identity=identity
                )
                return result.partitions[0].error

            assert await sent(0) is None
            assert isinstance(await sent(5), OutOfOrderSequenceError), "by a leader"
            state = dataclasses.replace(cluster.states[topic.topic_id, 0], leader=2, leader_epoch=9)
            cluster.states[topic.topic_id, 0] = state
            assert log_of(replaced).is_leader, "it has not heard of it"
            error = await sent(5)
            assert isinstance(error, NotLeaderOrFollowerError)
            assert error.retriable

    run(scenario())
