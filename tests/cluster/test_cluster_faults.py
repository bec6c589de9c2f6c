"""Faults between brokers and ZooKeeper: processes stopped and killed, connections cut, ZooKeeper down."""

import asyncio
import signal
import time
import uuid
from pathlib import Path

import pytest

from logstore.cluster.znodes import NO_LEADER, broker_path
from logstore.cluster.zookeeper import Servers, SessionState, ZooKeeper
from logstore.cluster.zookeeper_server import ZooKeeperEnsemble
from logstore.errors import LogStoreError
from tests.support.cluster_state_process import ClusterStateProcess, table
from tests.support.cluster_states import TICK_MS, Brokers, brokers_on
from tests.support.eventually import eventually_async
from tests.support.tcp_relay import TcpRelay

pytestmark = [pytest.mark.anyio, pytest.mark.system]

SHORT_MS = 2_000


async def gone(brokers: Brokers, broker_id: int, seconds: float = 60) -> None:
    """Wait until ZooKeeper has removed the broker's node."""
    deadline = time.monotonic() + seconds
    while await brokers.zookeeper.exists(brokers.path(broker_path(broker_id))) is not None:
        assert time.monotonic() < deadline, "the broker's node stays"
        await asyncio.sleep(0.01)


async def test_c14_a_process_that_was_stopped_has_no_lease_when_it_continues(brokers: Brokers, tmp_path: Path):
    await brokers.start(2)
    with ClusterStateProcess(brokers.servers + brokers.chroot, tmp_path, 1, SHORT_MS) as process:
        former = await asyncio.to_thread(process.line, "registered")
        await eventually_async(lambda: 1 in brokers.running[2].view.brokers)
        began = time.time()
        process.signal(signal.SIGSTOP)
        await gone(brokers, 1)
        process.signal(signal.SIGCONT)
        # A busy machine may have stopped the process before.
        while (stopped := await asyncio.to_thread(process.line, "stopped"))["at"] < began:
            pass
        assert stopped["seconds"] > SHORT_MS / 2_000
        assert not stopped["lease"], stopped
        assert (await asyncio.to_thread(process.line, "registered"))["epoch"] > former["epoch"]


async def test_the_registration_of_a_kill_is_waited_for_and_leadership_moves(brokers: Brokers, tmp_path: Path):
    connect, topic_id = brokers.servers + brokers.chroot, uuid.uuid4()
    brokers.tables.append(table(topic_id))
    with ClusterStateProcess(connect, tmp_path, 1, 5_000, topic_id) as process:
        former = await asyncio.to_thread(process.line, "registered")
        (second,) = await brokers.start(2)
        await eventually_async(lambda: second.partition_state(topic_id, 3).leader != NO_LEADER)
        assert second.controller_id == 1
        led = [number for number in range(4) if second.partition_state(topic_id, number).leader == 1]
        assert led
        process.signal(signal.SIGKILL)
        process.process.wait()
        await eventually_async(lambda: all(second.partition_state(topic_id, one).leader == 2 for one in led))
        assert second.controller.is_active
    (again,) = await brokers.start(1)
    assert again.registration.broker_epoch > former["epoch"]


async def test_c14_on_a_half_open_connection_the_lease_ends_before_the_session(brokers: Brokers):
    async with TcpRelay(brokers.servers) as relay:
        (one,) = await brokers.start(1, servers=relay.address, session_timeout_ms=SHORT_MS)
        # From here on only renewals hold the lease.
        await asyncio.sleep(SHORT_MS / 1_000)
        await eventually_async(lambda: one.has_lease, "the lease is not renewed")
        former = one.registration.broker_epoch
        relay.cut()
        await gone(brokers, 1)
        assert not one.has_lease, "ZooKeeper has ended the session before the lease"
        relay.heal()
        await eventually_async(lambda: one.registration.broker_epoch > former, "not registered again")
        await eventually_async(lambda: one.has_lease)


async def test_c14_the_lease_is_for_the_timeout_that_zookeeper_has_granted(brokers: Brokers):
    (one,) = await brokers.start(1, session_timeout_ms=60_000)
    assert one.zookeeper.session_timeout_s == 20 * TICK_MS / 1_000


async def test_zookeeper_killed_and_started_again_leaves_the_cluster_as_it_was(tmp_path: Path):
    ensemble = ZooKeeperEnsemble(tmp_path / "zookeeper", tick_ms=1_000)
    await asyncio.to_thread(ensemble.start)
    try:
        async with brokers_on(ensemble.connect, tmp_path) as brokers:
            # Sessions are long, so that a busy machine does not end them.
            first, second = await brokers.start(1, 2, session_timeout_ms=20_000)
            topic_id = await brokers.create_topic("t", 1, 2)
            before = first.partition_state(topic_id, 0)
            epochs = [one.registration.broker_epoch for one in (first, second)]
            ensemble.servers[0].kill()
            await eventually_async(lambda: first.zookeeper.state is SessionState.SUSPENDED)
            assert first.partition_state(topic_id, 0) == before, "the broker goes on with what it knows"
            ensemble.servers[0].start()
            await asyncio.to_thread(ensemble.servers[0].wait_until_serving)
            await brokers.seen_by(
                (first, second), lambda it: it.zookeeper.state is SessionState.CONNECTED and it.has_lease, "no lease"
            )
            assert [one.registration.broker_epoch for one in (first, second)] == epochs, "sessions are kept"
            assert first.partition_state(topic_id, 0) == before
            # Watches, elections and writes continue.
            leader = brokers.running[before.leader]
            await leader.alter_partition(topic_id, 0, before, [before.leader], broker_epochs={})
            await brokers.seen_by(
                (first, second),
                lambda it: it.partition_state(topic_id, 0).in_sync_replicas == (before.leader,),
                "the change is not seen",
            )
            await brokers.create_topic("u", 1, 2)
    finally:
        ensemble.stop()


@pytest.mark.long
async def test_z3_a_connection_that_comes_and_goes_loses_no_change(brokers: Brokers):
    async with TcpRelay(brokers.servers) as relay:
        (one,) = await brokers.start(1, servers=relay.address)
        (two,) = await brokers.start(2)
        epoch = one.registration.broker_epoch
        for number in range(6):
            await brokers.zookeeper.create(brokers.path(f"/brokers/topics/x{number}"), b"{}")
            one.zookeeper._client._connection._socket.shutdown(2)
            topic_id = await brokers.create_topic(f"t{number}", 1, 2)
            assert one.partition_state(topic_id, 0) == two.partition_state(topic_id, 0)
        assert one.registration.broker_epoch == epoch
        assert len(one.view.damaged) == 6


# ---- an ensemble -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory):
    ensemble = ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"), 3, tick_ms=TICK_MS)
    ensemble.start()
    yield ensemble
    ensemble.stop()


@pytest.mark.long
async def test_z2_the_leader_of_an_ensemble_killed_leaves_sessions_and_writes(three: ZooKeeperEnsemble, tmp_path: Path):
    async with brokers_on(three.connect, tmp_path) as brokers:
        cluster_states = await brokers.start(1, 2, 3)
        topic_id = await brokers.create_topic("t", 3, 3)
        epochs = [one.registration.broker_epoch for one in cluster_states]
        killed = three.leader
        killed.kill()

        async def written() -> bool:
            state = cluster_states[0].partition_state(topic_id, 0)
            leader = brokers.running[state.leader]
            epochs = {one: live.epoch for one, live in leader.view.brokers.items()}
            isr = state.replicas if len(state.in_sync_replicas) == 1 else [state.leader]
            try:
                await leader.alter_partition(topic_id, 0, state, isr, broker_epochs=epochs)
            except LogStoreError:
                return False
            return True

        deadline = time.monotonic() + 60
        while not await written():
            assert time.monotonic() < deadline, "no write gets through"
            await asyncio.sleep(0.1)
        await brokers.seen_by(cluster_states, lambda it: it.has_lease, "no lease")
        assert [one.registration.broker_epoch for one in cluster_states] == epochs, "sessions are kept"
        killed.start()
        await asyncio.to_thread(killed.wait_until_serving)


@pytest.mark.long
async def test_c14_a_server_that_has_lost_its_leader_renews_no_lease(three: ZooKeeperEnsemble, tmp_path: Path):
    """Read from the server, which answers as long as it does not know that its leader is lost."""
    leader = three.leader
    follower = next(server for server in three.servers if server is not leader)
    async with brokers_on(three.connect, tmp_path) as brokers:
        (one,) = await brokers.start(1, servers=follower.address, session_timeout_ms=SHORT_MS)
        reader = ZooKeeper(Servers.parse(follower.address + brokers.chroot), session_timeout_ms=20_000)
        await reader.start()
        try:
            assert one.has_lease
            leader.signal(signal.SIGSTOP)
            began = time.monotonic()
            ends: list[float] = []

            def ended() -> bool:
                ends.append(one.registration.lease._until)
                return not one.has_lease

            await eventually_async(ended, "the lease does not end", every_s=0.002)
            assert max(ends) - began <= SHORT_MS / 1_000
            assert await reader.exists("/brokers/ids/1"), "the follower answers reads"
        finally:
            leader.signal(signal.SIGCONT)
            await reader.stop()
        await eventually_async(lambda: one.has_lease, "the lease does not come back")
