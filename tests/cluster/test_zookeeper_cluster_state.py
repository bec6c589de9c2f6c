"""Coordinators on a real ZooKeeper: topics, the controller, leaders' writes, producer ids, locks."""

import asyncio
import contextlib
import uuid

import pytest
from msgspec.structs import replace

from logstore.cluster import alter_partition_manager, znodes
from logstore.cluster.cluster_state import ElectionType, KnownTopic
from logstore.cluster.reconcile import Policy, Preferred, TopicWrite
from logstore.cluster.znodes import NO_LEADER, ControllerEpoch
from logstore.errors import (
    ElectionNotNeededError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidUpdateVersionError,
    NoReassignmentInProgressError,
    NotControllerError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
    ZooKeeperUnavailableError,
)
from tests.support.captured_logs import captured_logs
from tests.support.cluster_states import Brokers, expire
from tests.support.eventually import eventually_async

pytestmark = [pytest.mark.anyio, pytest.mark.system]


async def led(brokers: Brokers, partitions: int = 1, replication_factor: int = 3):
    """Start three brokers with topic t; return the leader of partition 0 and the state that all of them see."""
    cluster_states = await brokers.start(1, 2, 3)
    topic_id = await brokers.create_topic("t", partitions, replication_factor)
    seen = cluster_states[0].partition_state(topic_id, 0)
    await brokers.seen_by(cluster_states, lambda it: it.partition_state(topic_id, 0) == seen, "views differ")
    return brokers.running[seen.leader], topic_id, seen


# ---- topics and events -----------------------------------------------------------------------------------------------


async def test_every_broker_sees_every_change_in_order(brokers: Brokers):
    cluster_states = await brokers.start(1, 2, 3)
    told: dict[int, list] = {one.broker_id: [] for one in cluster_states}
    for one in cluster_states:
        one.listen(lambda *event, it=one: told[it.broker_id].append(event))
    topic_id = await brokers.create_topic("t", 3, 3)
    rows = (await brokers.document("t")).partitions
    assert sorted(row.leader for row in rows) == [1, 2, 3]
    leader = brokers.running[rows[0].leader]
    seen = leader.partition_state(topic_id, 0)
    alone = await leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={})
    for one in cluster_states:
        mine = told[one.broker_id]
        await eventually_async(lambda mine=mine: (topic_id, 0, alone) in mine, "not told")
        assert [state for _, partition, state in mine if partition == 0] == [seen, alone]
        assert [partition for _, partition, _ in mine].count(1) == 1, "told of a partition that did not change"
    late = []
    cluster_states[0].listen(lambda *event: late.append(event))
    assert late == [(topic_id, number, cluster_states[0].partition_state(topic_id, number)) for number in range(3)]


async def test_a_grown_topic_keeps_what_it_has(brokers: Brokers):
    _, topic_id, seen = await led(brokers)
    for one in brokers.running.values():
        one.set_partitions(KnownTopic("t", topic_id, (0, 0, 0)))
    first = brokers.running[1]
    await eventually_async(lambda: first.partition_state(topic_id, 2).leader != NO_LEADER)
    assert first.partition_state(topic_id, 0) == seen


async def test_a_table_with_records_waits_for_adoption(brokers: Brokers):
    brokers.tables.append(KnownTopic("old", uuid.uuid4(), (3,), has_records=True))
    (one,) = await brokers.start(1)
    await eventually_async(lambda: "old" in one.controller.refused)
    assert await brokers.zookeeper.children(brokers.path("/brokers/topics")) == []


async def test_a_topic_is_deleted_by_the_controller(brokers: Brokers):
    leader, topic_id, _ = await led(brokers)
    controller = brokers.controller
    other = next(one for one in brokers.running.values() if one is not controller)
    with pytest.raises(NotControllerError, match=f"Broker {controller.broker_id} is the controller"):
        await other.mark_deleting(topic_id)
    await controller.mark_deleting(topic_id)
    await eventually_async(lambda: leader.partition_state(topic_id, 0).leader == NO_LEADER)
    assert (await brokers.document("t")).deleting
    for one in brokers.running.values():
        one.forget_topic(topic_id)
    await eventually_async(lambda: "t" not in other.view.topics)
    assert other.partition_state(topic_id, 0).replicas == ()


async def test_every_broker_sees_a_changed_table(brokers: Brokers):
    leader, topic_id, _ = await led(brokers)
    await leader.table_changed(topic_id)
    await brokers.seen_by(brokers.running.values(), lambda it: it.view.topics["t"].document.version == 1, "not seen")


async def test_z5_a_document_that_was_edited_by_hand_is_one_error_and_stays_what_it_was(brokers: Brokers):
    leader, topic_id, seen = await led(brokers)
    path = brokers.path("/brokers/topics/t")
    node = await brokers.zookeeper.get(path)
    await brokers.zookeeper.write(path, node.data.replace(b'"deleting"', b'"delete"'), node.version)
    await eventually_async(lambda: leader.view.damaged)
    ((damaged, message),) = leader.view.damaged.items()
    assert damaged == "/brokers/topics/t"
    assert "/brokers/topics/t in ZooKeeper is not what a broker of this release writes" in message
    assert leader.partition_state(topic_id, 0) == seen
    await brokers.create_topic("other", 1, 3)
    await brokers.zookeeper.write(path, node.data, node.version + 1)
    await eventually_async(lambda: not leader.view.damaged)
    assert (await leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={})).in_sync_replicas


# ---- leaders' writes -------------------------------------------------------------------------------------------------


async def test_c5_changes_of_a_topic_are_one_write(brokers: Brokers):
    leader, topic_id, _ = await led(brokers, partitions=9)
    mine = [number for number in range(9) if leader.partition_state(topic_id, number).leader == leader.broker_id]
    assert len(mine) == 3
    before = leader.view.topics["t"].version
    states = await asyncio.gather(
        *(
            leader.alter_partition(
                topic_id, number, leader.partition_state(topic_id, number), [leader.broker_id], broker_epochs={}
            )
            for number in mine
        )
    )
    assert [state.in_sync_replicas for state in states] == [(leader.broker_id,)] * 3
    assert leader.view.topics["t"].version == before + 1
    assert [leader.partition_state(topic_id, number) for number in mine] == states, "the view shows what was written"


async def test_z6_leaders_that_write_at_once_all_get_through(brokers: Brokers):
    _, topic_id, _ = await led(brokers, partitions=6)

    async def shrink_and_expand(number: int) -> None:
        one = brokers.running[brokers.running[1].partition_state(topic_id, number).leader]
        for _ in range(4):
            seen = one.partition_state(topic_id, number)
            alone = await one.alter_partition(topic_id, number, seen, [one.broker_id], broker_epochs={})
            epochs = {other: live.epoch for other, live in one.view.brokers.items()}
            await one.alter_partition(topic_id, number, alone, seen.in_sync_replicas, broker_epochs=epochs)

    await asyncio.gather(*(shrink_and_expand(number) for number in range(6)))
    document = await brokers.document("t")
    assert all((len(row.isr), row.leader_epoch) == (3, 1) for row in document.partitions)


async def test_c5_a_change_belongs_to_the_state_and_the_epoch_that_it_was_decided_on(brokers: Brokers):
    leader, topic_id, seen = await led(brokers)
    row = await brokers.row("t")
    await brokers.write_row("t", replace(row, isr=row.isr[:2]))
    with pytest.raises(InvalidUpdateVersionError, match="decide again"):
        await leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={})
    now = leader.partition_state(topic_id, 0)
    await brokers.write_row("t", replace(row, isr=row.isr[:2], leader_epoch=2))
    with pytest.raises(FencedLeaderEpochError, match="step down"):
        await leader.alter_partition(topic_id, 0, now, [seen.leader], broker_epochs={})
    assert (await brokers.row("t")).isr == row.isr[:2]
    with pytest.raises(UnknownTopicIdError):
        await leader.alter_partition(uuid.uuid4(), 0, now, [seen.leader], broker_epochs={})


async def test_a_second_change_of_a_partition_waits_for_the_first(brokers: Brokers):
    leader, topic_id, seen = await led(brokers)
    first = asyncio.create_task(leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={}))
    await asyncio.sleep(0)
    with pytest.raises(InvalidUpdateVersionError, match="under way"):
        await leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={})
    assert (await first).in_sync_replicas == (seen.leader,)


async def test_c4_c12_a_replica_joins_with_the_registration_that_the_leader_knows(brokers: Brokers):
    leader, topic_id, seen = await led(brokers)
    alone = await leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={})
    one, two = (replica for replica in seen.replicas if replica != seen.leader)
    former = leader.view.brokers[one].epoch
    await brokers.stop(one)
    await brokers.start(one)
    await eventually_async(lambda: one in leader.view.brokers and leader.view.brokers[one].epoch > former)
    for isr, epochs in [([one], {one: former}), ([one], {}), ([two, one], {two: leader.view.brokers[two].epoch})]:
        with pytest.raises(IneligibleReplicaError):
            await leader.alter_partition(topic_id, 0, alone, [seen.leader, *isr], broker_epochs=epochs)
    # The view may lag behind, so the write itself checks the record of the broker.
    known = {one: leader.view.brokers[one].epoch, two: leader.view.brokers[two].epoch}
    path = brokers.path(znodes.record_path(one))
    record = await brokers.zookeeper.get(path)
    await brokers.zookeeper.write(path, record.data, record.version)
    with pytest.raises(IneligibleReplicaError, match="was started again"):
        await leader.alter_partition(topic_id, 0, alone, [seen.leader, one], broker_epochs=known)
    joined = await leader.alter_partition(topic_id, 0, alone, [seen.leader, two], broker_epochs=known)
    assert joined.in_sync_replicas == (seen.leader, two)


async def test_c4_a_broker_that_stops_joins_no_isr(brokers: Brokers):
    leader, topic_id, seen = await led(brokers)
    alone = await leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={})
    one = next(replica for replica in seen.replicas if replica != seen.leader)
    assert await brokers.running[one].hand_over(10)
    await eventually_async(lambda: not leader.view.brokers[one].is_running)
    with pytest.raises(IneligibleReplicaError):
        await leader.alter_partition(
            topic_id, 0, alone, [seen.leader, one], broker_epochs={one: leader.view.brokers[one].epoch}
        )


async def test_c11_a_leader_ends_its_recovery(brokers: Brokers):
    leader, topic_id, _ = await led(brokers)
    row = await brokers.row("t")
    await brokers.write_row("t", replace(row, isr=(row.leader,), recovering=True))
    await eventually_async(lambda: leader.partition_state(topic_id, 0).recovering)
    recovering = leader.partition_state(topic_id, 0)
    done = await leader.alter_partition(topic_id, 0, recovering, [row.leader], broker_epochs={}, recovering=False)
    assert not done.recovering
    assert not (await brokers.row("t")).recovering
    again = await leader.alter_partition(topic_id, 0, done, [row.leader], broker_epochs={}, recovering=True)
    assert not again.recovering, "only the controller begins a recovery"


async def test_a_change_without_zookeeper_is_open(brokers: Brokers, monkeypatch):
    monkeypatch.setattr(alter_partition_manager, "LINGER_S", 0.5)
    leader, topic_id, seen = await led(brokers)
    asking = asyncio.create_task(leader.alter_partition(topic_id, 0, seen, [seen.leader], broker_epochs={}))
    await asyncio.sleep(0.1)
    await leader.zookeeper.stop()
    with pytest.raises(ZooKeeperUnavailableError):
        await asking


# ---- the controller --------------------------------------------------------------------------------------------------


async def test_the_controller_moves_when_its_broker_stops_and_elects_leaders(brokers: Brokers):
    _, topic_id, _ = await led(brokers, partitions=3)
    controller = brokers.controller
    epoch = controller.controller.epoch
    await brokers.stop(controller.broker_id)
    await eventually_async(lambda: brokers.controller is not None)
    assert brokers.controller.controller.epoch == epoch + 1
    gone = controller.broker_id

    def all_led(it):
        states = [it.partition_state(topic_id, number) for number in range(3)]
        return all(state.leader not in {gone, NO_LEADER} and gone not in state.in_sync_replicas for state in states)

    await brokers.seen_by(brokers.running.values(), all_led, "a partition is led by a broker that is gone")
    await brokers.seen_by(
        brokers.running.values(), lambda it: it.controller_id == brokers.controller.broker_id, "not the same controller"
    )


async def test_the_controllers_session_ends_and_there_is_one_controller(brokers: Brokers):
    await led(brokers)
    controller = brokers.controller
    epoch = controller.controller.epoch
    await expire(controller)
    await eventually_async(lambda: brokers.controller is not None and brokers.controller.controller.epoch > epoch)
    await eventually_async(lambda: sum(one.controller.is_active for one in brokers.running.values()) == 1)
    assert brokers.controller.controller_id == brokers.controller.broker_id


async def test_c2_a_controller_that_was_replaced_writes_nothing(brokers: Brokers):
    _, topic_id, _ = await led(brokers)
    controller = brokers.controller
    path = brokers.path(znodes.CONTROLLER_EPOCH)
    node = await brokers.zookeeper.get(path)
    raised = znodes.encode(path, ControllerEpoch(controller.controller.epoch + 1))
    await brokers.zookeeper.write(path, raised, node.version)
    before = await brokers.document("t")
    zombie = controller.controller
    write = TopicWrite("t", replace(before, version=99), controller.view.topics["t"].version)
    with pytest.raises(NotControllerError):
        await zombie._write(controller.view, [write])
    assert await brokers.document("t") == before
    assert not zombie.is_active
    zombie._epoch_version = node.version
    with pytest.raises(NotControllerError):
        await zombie.mark_deleting("t", topic_id)
    assert await brokers.document("t") == before


async def test_a_controller_whose_answer_was_lost_finds_its_own_election(brokers: Brokers):
    (one,) = await brokers.start(1)
    await eventually_async(lambda: one.controller.is_active)
    epoch = one.controller.epoch
    one.controller._epoch_version = None
    one.controller.wake(None)
    await eventually_async(lambda: one.controller.is_active)
    assert one.controller.epoch == epoch
    await brokers.create_topic("t", 1, 1)


async def test_a_broker_hands_over_before_it_stops(brokers: Brokers):
    leader, topic_id, seen = await led(brokers)
    assert await leader.hand_over(20)
    other = next(one for one in brokers.running.values() if one is not leader)
    now = leader.partition_state(topic_id, 0)
    assert now.leader != seen.leader
    assert (now.leader_epoch, now.in_sync_replicas) == (2, seen.in_sync_replicas)
    await brokers.stop(seen.leader)
    await eventually_async(
        lambda: seen.leader not in other.partition_state(topic_id, 0).in_sync_replicas, "still in the ISR", seconds=12
    )


async def test_leaders_are_elected_and_partitions_moved_on_request(brokers: Brokers):
    _, topic_id, seen = await led(brokers, replication_factor=2)
    first = brokers.running[1]
    row = await brokers.row("t")
    await brokers.write_row("t", replace(row, leader=row.isr[1], leader_epoch=2))
    await eventually_async(lambda: first.partition_state(topic_id, 0).leader == row.isr[1])
    controller = brokers.controller.controller
    await eventually_async(lambda: brokers.controller.partition_state(topic_id, 0).leader == row.isr[1])
    await controller.elect_leaders(Policy(preferred=Preferred.ALL))
    assert (await brokers.row("t")).leader == seen.leader
    (third,) = {1, 2, 3} - set(row.replicas)
    with pytest.raises(InvalidReplicaAssignmentError, match=r"no brokers \[9\] now"):
        await controller.reassign("t", {0: [9]})
    await controller.reassign("t", {0: [third]})
    leader = brokers.running[seen.leader]
    await eventually_async(lambda: third in leader.partition_state(topic_id, 0).replicas)
    state = leader.partition_state(topic_id, 0)
    epochs = {third: leader.view.brokers[third].epoch}
    await leader.alter_partition(topic_id, 0, state, [*state.in_sync_replicas, third], broker_epochs=epochs)
    await eventually_async(lambda: first.partition_state(topic_id, 0).replicas == (third,))
    assert first.partition_state(topic_id, 0).leader == third


async def test_the_controller_says_how_each_election_ended(brokers: Brokers):
    _, topic_id, seen = await led(brokers, partitions=2)
    controller = brokers.controller
    other = next(one for one in brokers.running.values() if one is not controller)
    with pytest.raises(NotControllerError):
        await other.elect_leaders(ElectionType.PREFERRED)
    with pytest.raises(NotControllerError):
        await other.reassign("t", {0: [1]})
    assert await controller.elect_leaders(ElectionType.PREFERRED) == {}
    document = await brokers.document("t")
    # The second replica leads partition 0, and the first one leads partition 1.
    moved = replace(document.partitions[0], leader=document.partitions[0].isr[1], leader_epoch=2)
    path = brokers.path(znodes.topic_path("t"))
    node = await brokers.zookeeper.get(path)
    changed = replace(document, partitions=(moved, document.partitions[1]))
    await brokers.zookeeper.write(path, znodes.encode(path, changed), node.version)
    await eventually_async(lambda: controller.partition_state(topic_id, 0).leader == moved.leader)
    asked = {"t": [0, 1, 9], "none": [0]}
    # A broker has registered since: the controller reads the registrations before it elects.
    ids = brokers.path(znodes.BROKER_IDS)
    known = (await brokers.zookeeper.get(ids)).version
    await brokers.zookeeper.write(ids, b"", known)
    with captured_logs() as logs:
        elected = await controller.elect_leaders(ElectionType.PREFERRED, asked)
    assert elected["t", 0] == seen.leader
    assert controller.view.registrations == known + 1
    (line,) = [line for line in logs if line["event"] == "controller.leader_elected"]
    told = {key: line[key] for key in ("topic", "partition", "election", "before", "leader")}
    assert told == {
        "topic": "t",
        "partition": 0,
        "election": "preferred",
        "before": moved.leader,
        "leader": seen.leader,
    }
    assert {where: type(how) for where, how in elected.items()} == {
        ("t", 0): int,
        ("t", 1): ElectionNotNeededError,
        ("t", 9): UnknownPartitionError,
        ("none", 0): UnknownTopicError,
    }
    row = await brokers.row("t")
    assert (row.leader, row.leader_epoch) == (seen.leader, 3)
    unclean = await controller.elect_leaders(ElectionType.UNCLEAN, {"t": [0]})
    assert isinstance(unclean["t", 0], ElectionNotNeededError)


async def test_a_reassignment_is_seen_and_taken_back(brokers: Brokers):
    _, topic_id, seen = await led(brokers, replication_factor=2)
    controller = brokers.controller
    (third,) = {1, 2, 3} - set(seen.replicas)
    with pytest.raises(NoReassignmentInProgressError):
        await controller.reassign("t", {0: None})
    await controller.reassign("t", {0: [third]})
    state = controller.partition_state(topic_id, 0)
    assert (state.adding_replicas, set(state.removing_replicas)) == ((third,), set(seen.replicas))
    assert state.is_reassigning
    assert not state.is_under_replicated, "the replica that is added does not count"
    await controller.reassign("t", {0: None})
    state = controller.partition_state(topic_id, 0)
    assert (set(state.replicas), state.is_reassigning) == (set(seen.replicas), False)


# ---- ids and locks ---------------------------------------------------------------------------------------------------


async def test_c17_ids_of_producers_are_given_once_and_above_all_epochs(brokers: Brokers):
    brokers.tables.append(KnownTopic("t", uuid.uuid4(), (7, 41)))
    first, second = await brokers.start(1, 2)
    ids = [await one.new_producer_id() for _ in range(3) for one in (first, second)]
    assert len(set(ids)) == 6
    assert min(ids) == (41 + 1) << 32 == first.producer_ids_begin
    first._producer_ids._free = range(0)
    ids.append(await first.new_producer_id())
    assert len(set(ids)) == 7
    assert all(first.is_issued(one) for one in ids[::2])
    assert not first.is_issued(max(ids) + 1)
    theirs = await second.new_producer_id()
    await first.refresh_producer_ids()
    assert first.is_issued(theirs)
    await brokers.stop(1)
    (again,) = await brokers.start(1)
    assert await again.new_producer_id() > max(ids)


async def test_a_table_has_one_holder_of_its_lock(brokers: Brokers):
    first, second = await brokers.start(1, 2)
    inside: list[int] = []

    async def work(cluster_state) -> None:
        for _ in range(3):
            async with cluster_state.table_lock("t"):
                inside.append(cluster_state.broker_id)
                assert len(inside) == 1
                await asyncio.sleep(0.02)
                inside.clear()

    await asyncio.gather(work(first), work(second), work(second))
    async with first.table_lock("t"), second.table_lock("u"):
        assert await brokers.zookeeper.exists(brokers.path("/locks/t"))
    assert not await brokers.zookeeper.exists(brokers.path("/locks/t"))


async def test_a_lock_ends_with_its_holder(brokers: Brokers):
    first, second = await brokers.start(1, 2)
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(first.table_lock("t"))
        waiting = asyncio.create_task(held.enter_async_context(second.table_lock("t")))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await expire(first)
        await asyncio.wait_for(waiting, 30)
