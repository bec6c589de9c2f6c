"""Topics over the brokers of a cluster: the controller creates, changes and deletes them, the other brokers follow."""

import asyncio
import json
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logstore.broker.authorizer import CLUSTER_NAME, Operation
from logstore.broker.context import INTERNAL
from logstore.broker.elsewhere import topic_discovery
from logstore.broker.topics.catalog import TopicCatalog
from logstore.cli.app import app
from logstore.cluster import checked_file, znodes
from logstore.cluster.log_directory import OneNodeDirectory
from logstore.cluster.view import WatchedView
from logstore.cluster.zookeeper import Delete
from logstore.errors import (
    DataDirectoryError,
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    NotControllerError,
    UnknownTopicError,
)
from logstore.filesystem import FileSystem
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.table_root import open_root
from tests.support.authorizer_views import DeniedOperations
from tests.support.cluster_states import Brokers
from tests.support.cluster_stores import ClusterStores
from tests.support.eventually import eventually_async
from tests.support.running_broker import CLIENT, produce, read_all, running_broker

pytestmark = [pytest.mark.anyio, pytest.mark.system]


@pytest.fixture
async def stores(brokers: Brokers, tmp_path: Path) -> AsyncIterator[ClusterStores]:
    found = ClusterStores(brokers, tmp_path / "data")
    yield found
    await found.stop()


async def test_a_broker_looks_before_it_says_that_a_topic_is_not_there(stores: ClusterStores, monkeypatch):
    """Ask a broker whose view of ZooKeeper is older than the topic, and which no watch reaches."""
    monkeypatch.setattr(topic_discovery, "_LOOK_FOR_S", 60.0)
    deaf: list[WatchedView] = []
    changed = WatchedView._changed
    monkeypatch.setattr(WatchedView, "_changed", lambda view, path: view in deaf or changed(view, path))
    await stores.start(1, 2)
    making = await stores.making()
    other = next(store.broker for store in stores.stores.values() if store.broker is not making)
    await stores.everywhere(OFFSETS_TOPIC, 2)
    deaf.append(stores.cluster_state(other.broker_id)._watched)
    topic = await making.topics.changes.create(INTERNAL, "t", partitions=2)
    topics = other.topics.served
    with pytest.raises(UnknownTopicError):
        topics.get("t")
    await asyncio.gather(*(other.elsewhere.discovery.until_known(name) for name in ("t", "none", "t")))
    assert topics.get("t").topic_id == topic.topic_id
    with pytest.raises(UnknownTopicError):
        topics.get("none")
    await making.topics.changes.add_partitions(INTERNAL, "t", 3)
    # A new leader reads the topic's table, and may have found the third partition there already.
    await other.elsewhere.discovery.until_known("t", 3)
    assert len(topics.get("t").partitions) == 3
    deaf.clear()


async def test_a_topic_that_is_not_served_here_yet_is_neither_waited_for_nor_created_again(stores: ClusterStores):
    """Ask the client to retry, even one that may not create topics."""
    await stores.start(1, 2, auto_create_topics_enable=True)
    making = await stores.making()
    other = next(store.broker for store in stores.stores.values() if store.broker is not making)
    await stores.everywhere(OFFSETS_TOPIC, 2)
    async with other.topics.served.lock, asyncio.timeout(9):
        await making.topics.changes.create(INTERNAL, "t")
        cluster_state = stores.cluster_state(other.broker_id)
        await eventually_async(lambda: cluster_state.registered_topic("t") is not None, "not registered")
        for version, names in enumerate(((), ("t", CLUSTER_NAME)), start=1):
            other.authorizer.replace(DeniedOperations([(Operation.CREATE, name) for name in names], version))
            with pytest.raises(LeaderNotAvailableError):
                other.topics.changes.find(CLIENT, "t", Operation.WRITE)
            for operation in (Operation.WRITE, Operation.READ, Operation.DESCRIBE):
                with pytest.raises(LeaderNotAvailableError):
                    await other.topics.changes.find_or_create(CLIENT, "t", operation)
    await stores.everywhere("t", 1)
    assert (await other.topics.changes.find_or_create(CLIENT, "t", Operation.WRITE)).name == "t"


async def test_a_topic_is_everywhere_grows_and_goes(stores: ClusterStores):
    await stores.start(1, 2, 3)
    making = await stores.making()
    other = next(store.broker for store in stores.stores.values() if store.broker is not making)
    with pytest.raises(NotControllerError, match=f"Broker {making.broker_id} is the controller"):
        await other.topics.changes.create(INTERNAL, "t")
    topic = await making.topics.changes.create(INTERNAL, "t", partitions=3)
    assert {making.topics.leaders.partition_state(INTERNAL, topic, p).leader for p in range(3)} == {1, 2, 3}, (
        "spread, and led already"
    )
    topics = await stores.everywhere("t", 3)
    assert {each.topic_id for each in topics} == {topic.topic_id}
    for partition in range(3):
        leader = stores.leader("t", partition)
        assert await produce(leader, leader.topics.served.topic(INTERNAL, "t"), [b"a"], partition=partition) == 0
    await making.topics.changes.alter_configs(
        INTERNAL, "t", {"segment.bytes": "1000", "unclean.leader.election.enable": "true"}
    )
    await eventually_async(
        lambda: all(t.config.segment_bytes == 1000 for t in topics), "configuration is not everywhere"
    )
    assert stores.cluster_state(making.broker_id)._tables[topic.topic_id].unclean
    grown = await making.topics.changes.add_partitions(INTERNAL, "t", 5)
    assert all(making.topics.leaders.partition_state(INTERNAL, grown, p).leader > 0 for p in range(5))
    await stores.everywhere("t", 5)
    for change in (
        other.topics.changes.alter_configs(INTERNAL, "t", {"segment.bytes": "1"}),
        other.topics.changes.add_partitions(INTERNAL, "t", 6),
        other.topics.changes.delete(INTERNAL, "t"),
    ):
        with pytest.raises(NotControllerError):
            await change
    await making.topics.changes.delete(INTERNAL, "t")
    await stores.nowhere("t")
    # The name is free on every broker, and now belongs to another topic.
    again = await making.topics.changes.create(INTERNAL, "t", partitions=2)
    assert again.topic_id != topic.topic_id
    topics = await stores.everywhere("t", 2)
    assert {each.topic_id for each in topics} == {again.topic_id}
    assert [p.log_end_offset for each in topics for p in each.partitions] == [0] * 6


async def test_replicas_are_placed_on_brokers_that_are_there(stores: ClusterStores):
    await stores.start(1, 2)
    making = await stores.making()
    for factor, message in ((0, "below 1"), (3, r"number of brokers \(2\)")):
        with pytest.raises(InvalidReplicationFactorError, match=message):
            await making.topics.changes.create(INTERNAL, "t", replication_factor=factor)
    topic = await making.topics.changes.create(INTERNAL, "t", replication_factor=2)
    assert set(making.topics.leaders.partition_state(INTERNAL, topic, 0).replicas) == {1, 2}


async def test_a_restart_and_a_deletion_while_a_broker_was_away(stores: ClusterStores):
    await stores.start(1, 2)
    making = await stores.making()
    away = 3 - making.broker_id
    for name in ("kept", "gone", "renewed"):
        await making.topics.changes.create(INTERNAL, name, partitions=2)
        await stores.everywhere(name, 2)
        leaders = [stores.leader(name, partition) for partition in range(2)]
        for partition, leader in enumerate(leaders):
            topic = leader.topics.served.topic(INTERNAL, name)
            # The stop does not roll them: only the journal has them.
            topic.table.alter_config({"segment.ms": "100000000"})
            await produce(leader, topic, [b"a", b"b"], partition=partition)
    stores.stores[away].broker._schedule.roll_at_stop = _nothing
    await stores.stop(away)
    await making.topics.changes.delete(INTERNAL, "gone")
    await making.topics.changes.delete(INTERNAL, "renewed")
    renewed = await making.topics.changes.create(INTERNAL, "renewed")
    await making.topics.changes.alter_configs(INTERNAL, "kept", {"segment.bytes": "1000"})
    (back,) = await stores.start(away)
    await stores.everywhere("kept", 2)
    for partition in range(2):
        leader = stores.leader("kept", partition)
        assert await read_all(leader, leader.topics.served.topic(INTERNAL, "kept"), partition) == [(0, b"a"), (1, b"b")]
    assert back.topics.served.topic(INTERNAL, "kept").config.segment_bytes == 1000
    assert stores.topic(away, "gone") is None
    assert back.topics.served.topic(INTERNAL, "renewed").topic_id == renewed.topic_id
    assert back.topics.problems.all(INTERNAL) == [], "the journal has nothing left of topics that were deleted"


async def _nothing() -> None:
    pass


async def test_a_table_that_comes_late_gets_its_records_from_the_journal(stores: ClusterStores):
    await stores.start(1)
    making = await stores.making()
    topic = await making.topics.changes.create(INTERNAL, "t", configs={"segment.ms": "100000000"})
    await produce(making, topic, [b"a", b"b"])
    making._schedule.roll_at_stop = _nothing
    await stores.stop(1)
    (stores.data / "topics/t").rename(stores.data / "aside")
    (one,) = await stores.start(1)
    (problem,) = one.topics.problems.all(INTERNAL)
    assert problem.reason.startswith(f"The journal holds 2 records of the topic with id {topic.topic_id}")
    (stores.data / "aside").rename(stores.data / "topics/t")
    (topic,) = await stores.everywhere("t", 1)
    assert await read_all(one, topic) == [(0, b"a"), (1, b"b")]
    assert await produce(one, topic, [b"c"]) == 2
    assert one.topics.problems.all(INTERNAL) == []
    await stores.stop(1)
    (one,) = await stores.start(1)
    (topic,) = await stores.everywhere("t", 1)
    assert await read_all(one, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_a_leader_commits_again_what_was_overwritten_before_the_start(stores: ClusterStores):
    await stores.start(1)
    making = await stores.making()
    topic = await making.topics.changes.create(INTERNAL, "t")
    versions = []
    for value in (b"a", b"b", b"c"):
        await produce(making, topic, [value])
        versions.append((await making.topics.tables.roll(INTERNAL, topic)).version)
    await stores.stop(1)
    foreign = b'{"commitInfo":{"timestamp":1,"operation":"WRITE","operationParameters":{}}}\n'
    (stores.data / f"topics/t/_delta_log/{versions[1]:020d}.json").write_bytes(foreign)
    (one,) = await stores.start(1)
    (topic,) = await stores.everywhere("t", 1)
    await eventually_async(lambda: topic.partitions[0].record_count == 3, "not committed again")
    assert await read_all(one, topic) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_an_old_image_of_the_disk_leads_nothing(stores: ClusterStores, tmp_path: Path):
    await stores.start(1)
    await stores.stop(1)
    shutil.copytree(stores.data / "brokers/1", tmp_path / "image")
    await stores.start(1)
    await (await stores.making()).topics.changes.create(INTERNAL, "t")
    await stores.stop(1)
    shutil.rmtree(stores.data / "brokers/1")
    shutil.copytree(tmp_path / "image", stores.data / "brokers/1")
    (one,) = await stores.start(1)
    assert (await stores.zookeeper.row("t")).isr == ()
    assert not one.topics.served.topic(INTERNAL, "t").partitions[0].is_leader


async def test_a_table_whose_creator_died_is_registered_by_the_next_controller(stores: ClusterStores):
    await stores.start(1, 2)
    before = await stores.controller()
    # This is what a controller leaves that died after the first step.
    TopicCatalog(open_root(stores.data)).create("t", num_partitions=2, config_overrides={})
    await asyncio.sleep(0.3)
    assert stores.topic(before, "t") is None
    await stores.stop(before)
    await stores.everywhere("t", 2)


async def test_a_deletion_is_finished_by_the_next_controller(stores: ClusterStores):
    await stores.start(1, 2)
    before = await stores.controller()
    making = stores.stores[before].broker
    topic = await making.topics.changes.create(INTERNAL, "t", partitions=2)
    await stores.everywhere("t", 2)
    # The broker dies after the step before the table is moved.
    stores.stores[before].broker.elsewhere.discovery._tasks[0].cancel()
    await stores.cluster_state(before).mark_deleting(topic.topic_id)
    await stores.stop(before)
    await eventually_async(lambda: not (stores.data / "topics/t").exists(), "the table is still there")
    await stores.nowhere("t")
    path = stores.zookeeper.path(znodes.topic_path("t"))
    for _ in range(100):
        if await stores.zookeeper.zookeeper.get(path) is None:
            break
        await asyncio.sleep(0.05)
    assert await stores.zookeeper.zookeeper.get(path) is None
    (again,) = await stores.start(before)
    assert stores.topic(before, "t") is None
    assert again.topics.problems.all(INTERNAL) == []


async def test_a_broker_that_lost_its_session_is_not_ready_until_it_is_back(stores: ClusterStores):
    await stores.start(1)
    one = await stores.making()
    topic = await one.topics.changes.create(INTERNAL, "t")
    reasons = []
    stores.cluster_state(1).zookeeper.listen(lambda _: reasons.append(one.not_ready_reason))
    await stores.expire(1)
    await eventually_async(lambda: any("registers again" in (reason or "") for reason in reasons), "never unready")
    await eventually_async(lambda: one.not_ready_reason is None, "not back")
    await eventually_async(lambda: topic.partitions[0].is_leader, "leads no more")
    assert await produce(one, topic, [b"a"]) == 0


async def test_others_lead_what_a_failed_journal_cannot_serve(stores: ClusterStores):
    await stores.start(1, 2)
    making = await stores.making()
    topic = await making.topics.changes.create(INTERNAL, "t", partitions=4, replication_factor=2)
    failed = 3 - making.broker_id
    stores.stores[failed].broker.journal._background_done(_failed())
    # Both replicas are in the ISR from the beginning, because neither has a record.
    await eventually_async(
        lambda: all(
            making.topics.leaders.partition_state(INTERNAL, topic, p).leader == making.broker_id for p in range(4)
        ),
        "still led by a broker whose journal has failed",
    )
    assert "journal" in stores.stores[failed].broker.not_ready_reason


def _failed() -> "asyncio.Future[None]":
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_exception(OSError("the disk is gone"))
    return done


async def test_the_topic_of_offsets_is_made_by_the_controller_and_waited_for(stores: ClusterStores):
    await stores.start(1, 2, offsets_topic_replication_factor=2)
    topics = await stores.everywhere(OFFSETS_TOPIC, 2)
    assert {
        len(stores.stores[1].broker.topics.leaders.partition_state(INTERNAL, topics[0], p).replicas) for p in range(2)
    } == {2}


async def test_an_unknown_table_with_records_waits_for_adoption(stores: ClusterStores, tmp_path: Path):
    await stores.start(1)
    await stores.stop(1)
    async with running_broker(tmp_path / "other") as alone:
        topic = await alone.topics.changes.create(INTERNAL, "found")
        await produce(alone, topic, [b"a", b"b"])
        await alone.topics.tables.roll(INTERNAL, topic)
    (tmp_path / "other/topics/found").rename(stores.data / "topics/found")
    (one,) = await stores.start(1)
    await eventually_async(lambda: "found" in stores.cluster_state(1).controller.refused, "not refused")
    (problem,) = one.topics.problems.all(INTERNAL)
    assert problem.remedy == "Run: logstore cluster adopt found"
    command = ["cluster", "adopt", "found", "--data", str(stores.data), "--zookeeper"]
    code, _, err = await logstore(*command, stores.zookeeper.servers + "/elsewhere")
    assert (code, err.count("\n")) == (1, 1)
    connect = stores.zookeeper.servers + stores.zookeeper.chroot
    code, out, err = await logstore(*command, connect)
    assert (code, err) == (0, "")
    assert "Topic found is the cluster's now, with 1 partition" in out
    await stores.everywhere("found", 1)
    assert one.topics.problems.all(INTERNAL) == []
    assert await read_all(one, one.topics.served.topic(INTERNAL, "found")) == [(0, b"a"), (1, b"b")]
    code, _, err = await logstore(*command, connect)
    assert (code, err) == (1, "logstore: ZooKeeper knows topic found already.\n")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_topic_whose_registration_was_lost_keeps_the_tails_of_journals(
    stores: ClusterStores, tmp_path: Path, elsewhere: bool
):
    """Keep the tails even in a log directory outside the data directory."""
    log_dirs = tmp_path / "disk" if elsewhere else None
    await stores.start(1)
    await stores.start(2, log_dirs=log_dirs)
    making = await stores.making()
    await making.topics.changes.create(INTERNAL, "t", partitions=2, configs={"segment.ms": "100000000"})
    await stores.everywhere("t", 2)
    for partition in range(2):
        leader = stores.leader("t", partition)
        topic = leader.topics.served.topic(INTERNAL, "t")
        await produce(leader, topic, [b"a"], partition=partition)
        await leader.topics.tables.roll(INTERNAL, topic)
        await produce(leader, topic, [b"b"], partition=partition)
        leader._schedule.roll_at_stop = _nothing
    led = {partition: stores.leader("t", partition).broker_id for partition in range(2)}
    await stores.stop(1, 2)
    path = stores.zookeeper.path(znodes.topic_path("t"))
    await stores.zookeeper.zookeeper.multi([Delete(path, (await stores.zookeeper.zookeeper.get(path)).version)])
    await stores.start(1)
    await stores.start(2, log_dirs=log_dirs)
    connect = stores.zookeeper.servers + stores.zookeeper.chroot
    code, out, err = await logstore(
        "cluster", "adopt", "t", "--data", str(stores.data), "--zookeeper", connect, "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)["partitions"]
    assert {one["partition"]: one["broker"] for one in found} == led
    assert [one["unsealed_records"] for one in found] == [1, 1]
    await stores.everywhere("t", 2)
    for partition in range(2):
        leader = stores.leader("t", partition)
        topic = leader.topics.served.topic(INTERNAL, "t")
        assert await read_all(leader, topic, partition) == [(0, b"a"), (1, b"b")]
        assert await produce(leader, topic, [b"c"], partition=partition) == 2


async def test_a_registration_that_is_removed_by_hand_loses_no_record(stores: ClusterStores):
    await stores.start(1, 2)
    making = await stores.making()
    await making.topics.changes.create(INTERNAL, "t", configs={"segment.ms": "100000000"})
    await stores.everywhere("t", 1)
    leader = stores.leader("t", 0)
    topic = leader.topics.served.topic(INTERNAL, "t")
    await produce(leader, topic, [b"a"])
    path = stores.zookeeper.path(znodes.topic_path("t"))
    zookeeper = stores.zookeeper.zookeeper
    await zookeeper.multi([Delete(path, (await zookeeper.get(path)).version)])
    await eventually_async(lambda: "t" in stores.cluster_state(making.broker_id).controller.refused, "not refused")
    await eventually_async(
        lambda: not any(stores.topic(one, "t").partitions[0].is_leader for one in stores.stores), "somebody leads"
    )
    with pytest.raises(LeaderNotAvailableError):
        await produce(leader, topic, [b"x"])
    assert await zookeeper.get(path) is None
    (problem,) = making.topics.problems.all(INTERNAL)
    assert problem.remedy == "Run: logstore cluster adopt t"
    connect = stores.zookeeper.servers + stores.zookeeper.chroot
    code, _, err = await logstore("cluster", "adopt", "t", "--data", str(stores.data), "--zookeeper", connect)
    assert (code, err) == (0, "")
    await stores.everywhere("t", 1)
    leader = stores.leader("t", 0)
    topic = leader.topics.served.topic(INTERNAL, "t")
    assert await read_all(leader, topic) == [(0, b"a")]
    assert await produce(leader, topic, [b"b"]) == 1


async def logstore(*arguments: str) -> tuple[int, str, str]:
    """Run a command and return its exit code, stdout and stderr."""
    ran = await asyncio.to_thread(CliRunner().invoke, app, list(arguments))
    return ran.exit_code, ran.stdout, ran.stderr


# ---- from one node ---------------------------------------------------------------------------------------------------


async def one_node(data: Path) -> tuple[str, uuid.UUID]:
    """Make a store of one node with sealed records and a tail in the journal; return its cluster id and topic id."""
    async with running_broker(data, broker_id=7) as alone:
        topic = await alone.topics.changes.create(INTERNAL, "t", partitions=2, configs={"segment.ms": "100000000"})
        await produce(alone, topic, [b"a", b"b"], partition=0)
        await alone.topics.tables.roll(INTERNAL, topic)
        await produce(alone, topic, [b"c"], partition=0)
        await produce(alone, topic, [b"d"], partition=1)
        alone._schedule.roll_at_stop = _nothing
        return alone.cluster_id, topic.topic_id


async def test_a_store_of_one_node_becomes_a_cluster(stores: ClusterStores, brokers: Brokers):
    cluster_id, topic_id = await one_node(stores.data)
    secret = (stores.data / "brokers/7/secret").read_text()
    with pytest.raises(DataDirectoryError, match=r"start the cluster with the broker whose broker\.id is 7"):
        await stores.start(1)
    (first,) = await stores.start(7)
    (topic,) = await stores.everywhere("t", 2)
    assert (first.cluster_id, topic.topic_id) == (cluster_id, topic_id)
    assert await read_all(first, topic, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert await produce(first, topic, [b"e"], partition=1) == 1
    assert (
        topic.partitions[0].leader_epoch > OneNodeDirectory.open(stores.data / "brokers/7", FileSystem()).leader_epoch
    )
    assert (stores.data / "secret").read_text() == secret
    assert checked_file.read(FileSystem(), stores.data / "cluster.json", "")["coordinator"] == "zookeeper"
    (second,) = await stores.start(1)
    topics = await stores.everywhere("t", 2)
    assert {stores.leader("t", p) for p in range(2)} == {first}, "its journal has the tail"
    assert second.cluster_id == cluster_id
    assert len(topics) == 2
    with pytest.raises(DataDirectoryError, match="belongs to a cluster"):
        async with running_broker(stores.data, broker_id=7):
            pass


async def test_a_migration_that_was_cut_short_is_begun_again(stores: ClusterStores, monkeypatch: pytest.MonkeyPatch):
    _, topic_id = await one_node(stores.data)

    async def cut(_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("logstore.cluster.registration.Registration.end_migration", cut)
        with pytest.raises(OSError, match="killed"):
            await stores.start(7)
    # Topics are registered by now, and still the single node serves them once more.
    async with running_broker(stores.data, broker_id=7) as alone:
        await produce(alone, alone.topics.served.topic(INTERNAL, "t"), [b"x"], partition=1)
        alone._schedule.roll_at_stop = _nothing
    (first,) = await stores.start(7)
    (topic,) = await stores.everywhere("t", 2)
    assert topic.topic_id == topic_id
    assert await read_all(first, topic, 1) == [(0, b"d"), (1, b"x")]
    assert await produce(first, topic, [b"y"], partition=1) == 2
