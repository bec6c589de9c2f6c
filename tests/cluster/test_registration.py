"""A broker's registration in a real ZooKeeper: C12, C19, two brokers with the same id."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Sequence

import pytest
from kazoo.exceptions import SessionExpiredError
from kazoo.protocol.serialization import Sync

from benchmarks.free_port import free_port
from logstore.cluster import checked_file, znodes
from logstore.cluster.cluster_state import BrokerEndpoint
from logstore.cluster.registration import BrokerIdInUseError
from logstore.cluster.znodes import NO_LEADER
from logstore.cluster.zookeeper import MultiRefusedError, NoNodeError, Operation, ZooKeeper
from logstore.errors import (
    ClusterStateError,
    DataDirectoryError,
    InvalidConfigError,
    NotControllerError,
    ZooKeeperUnavailableError,
)
from tests.golden.write import GOLDEN
from tests.support.cluster_states import Brokers, expire, no_journal
from tests.support.eventually import eventually_async

pytestmark = [pytest.mark.anyio, pytest.mark.system]


async def test_brokers_agree_on_the_cluster_and_see_each_other(brokers: Brokers):
    first, second = await brokers.start(1, 2, rack="r")
    assert first.cluster_id == second.cluster_id != ""
    await brokers.seen_by([first, second], lambda it: it.brokers == [1, 2], "not both are there")
    found = first.view.brokers[2]
    assert (found.registration.url, found.registration.peer, found.registration.rack) == ("http://h2", "h2:1", "r")
    assert first.brokers_by_id == {one: BrokerEndpoint(one, f"http://h{one}", "r") for one in (1, 2)}
    assert found.epoch > first.view.brokers[1].epoch
    await brokers.stop(2)
    await eventually_async(lambda: first.brokers == [1], "a broker that has stopped is still there", seconds=12)


async def test_two_brokers_with_one_id_are_refused(brokers: Brokers, tmp_path):
    (first,) = await brokers.start(1)
    record = await brokers.zookeeper.get(brokers.path("/brokers/registry/1"))
    twin = brokers.make(1, log_directory=tmp_path / "twin", session_timeout_ms=4_000)
    with pytest.raises(BrokerIdInUseError, match=r"Broker 1 .* another process, at http://h1: .*broker\.id"):
        await twin.start(no_journal)
    assert await brokers.zookeeper.get(brokers.path("/brokers/registry/1")) == record, "nothing was half done"
    epoch = first.registration.broker_epoch
    assert (await brokers.zookeeper.exists(brokers.path("/brokers/ids/1"))).czxid == epoch
    await brokers.start(2)
    assert brokers.running[2].brokers == [1, 2]


# ---- C12 -------------------------------------------------------------------------------------------------------------


async def replicated(brokers: Brokers) -> None:
    """Create topic t with one partition on brokers 1 and 2, led by 1 in epoch 1."""
    await brokers.start(1, 2)
    await brokers.create_topic("t", 1, 2)
    row = await brokers.row("t")
    assert (row.leader, row.leader_epoch, sorted(row.isr)) == (1, 1, [1, 2])


async def test_a_broker_that_was_started_again_stays_in_its_isrs_and_leads_in_a_new_epoch(brokers: Brokers):
    await brokers.start(1)
    await brokers.create_topic("t", 1, 1)
    await brokers.stop(1)
    before = await brokers.row("t")
    await brokers.start(1)
    await eventually_async(lambda: brokers.running[1].partition_state(brokers.tables[0].topic_id, 0).leader == 1)
    after = await brokers.row("t")
    assert (after.isr, after.recovering) == ((1,), False)
    assert after.leader_epoch > before.leader_epoch


@pytest.mark.parametrize("loss", ["directory", "old image"])
async def test_c12_a_journal_that_is_not_the_last_one_leaves_every_isr(brokers: Brokers, loss):
    await replicated(brokers)
    log_directory = brokers.directory / "broker-2"
    shutil.copytree(log_directory, brokers.directory / "image")
    await brokers.stop(2)
    await brokers.start(2)
    # Broker 1 adds it to the ISR again, as a leader does.
    leader, topic_id = brokers.running[1], brokers.tables[0].topic_id
    await eventually_async(lambda: leader.brokers == [1, 2])
    seen = leader.partition_state(topic_id, 0)
    if 2 not in seen.in_sync_replicas:
        epochs = {2: leader.view.brokers[2].epoch}
        await leader.alter_partition(topic_id, 0, seen, [1, 2], broker_epochs=epochs)
    await brokers.stop(1)
    await eventually_async(lambda: brokers.running[2].partition_state(topic_id, 0).leader == 2)
    assert (await brokers.row("t")).isr == (2,)
    await brokers.stop(2)
    shutil.rmtree(log_directory)
    if loss == "old image":
        shutil.copytree(brokers.directory / "image", log_directory)
    await brokers.start(2)
    row = await brokers.row("t")
    assert (row.leader, row.isr) == (NO_LEADER, ()), "it was the only member: an unclean election is all that is left"
    record = znodes.decode(
        "", (await brokers.zookeeper.get(brokers.path("/brokers/registry/2"))).data, znodes.BrokerRecord
    )
    assert len(record.directories) == 1
    assert record.incarnation >= 3


async def test_c12_a_crash_before_the_isrs_were_left_begins_again(brokers: Brokers, monkeypatch):
    await brokers.start(1)
    await brokers.create_topic("t", 1, 1)
    await brokers.stop(1)
    shutil.rmtree(brokers.directory / "broker-1")
    record = await brokers.zookeeper.get(brokers.path("/brokers/registry/1"))
    crashing = brokers.make(1)

    async def crash(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(crashing.registration, "_change_topics", crash)
    with pytest.raises(KeyboardInterrupt):
        await crashing.start(no_journal)
    left = await brokers.zookeeper.get(brokers.path("/brokers/registry/1"))
    assert left.version > record.version, "a leader that knew the former journal writes it into no ISR from here on"
    assert znodes.decode("", left.data, znodes.BrokerRecord).directories == ()
    await brokers.start(1)
    assert (await brokers.row("t")).isr == ()


# ---- C19 -------------------------------------------------------------------------------------------------------------


async def test_c19_another_clusters_directories_are_refused(brokers: Brokers, tmp_path):
    await brokers.start(1)
    brokers.running[1]._release()
    with pytest.raises(DataDirectoryError, match=r"log directory of broker 1, not of 2.*broker\.id to 1"):
        await brokers.make(2, log_directory=tmp_path / "broker-1").start(no_journal)
    for name, content, message in [
        ("other", {"cluster_id": "x", "format_version": 2, "coordinator": "zookeeper"}, "belongs to the cluster x"),
        ("alone", {"cluster_id": "x", "format_version": 2}, r"store of one node.*its own path"),
        ("newer", {"cluster_id": "x", "format_version": 9, "coordinator": "zookeeper"}, "format version 9"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.json").write_bytes(checked_file.encode(content))
        with pytest.raises(DataDirectoryError, match=message):
            await brokers.make(2, data=tmp_path / name).start(no_journal)
        assert not (tmp_path / "broker-2" / "meta.json").exists()
    await brokers.create_topic("t", 1, 1)
    with pytest.raises(DataDirectoryError, match=r"is empty, and the cluster .* has topics"):
        await brokers.make(2, data=tmp_path / "empty").start(no_journal)


async def test_c19_the_golden_file_of_a_cluster_is_that_clusters(brokers: Brokers):
    golden = GOLDEN / "cluster-2" / "cluster" / "cluster"
    shutil.copytree(golden, brokers.directory / "data")
    for parent in (znodes.CLUSTER_ID.rpartition("/")[0], znodes.CLUSTER_ID):
        data = znodes.encode(parent, znodes.ClusterIdentity("a-cluster")) if parent == znodes.CLUSTER_ID else b""
        await brokers.zookeeper.create(brokers.path(parent), data)
    (broker,) = await brokers.start(1)
    assert broker.cluster_id == "a-cluster"
    assert (brokers.directory / "data" / "cluster.json").read_bytes() == (golden / "cluster.json").read_bytes()


async def test_c19_an_empty_zookeeper_is_not_the_cluster_of_a_directory(brokers: Brokers):
    await brokers.start(1)
    await brokers.stop(1)
    brokers.chroot += "-other"
    await brokers.zookeeper.create(brokers.chroot, b"")
    with pytest.raises(ClusterStateError, match=r"has no cluster, and .*zookeeper\.connect"):
        await brokers.make(1).start(no_journal)


async def test_a_zookeeper_that_is_not_there_is_one_error(brokers: Brokers):
    brokers.chroot = "/unknown"
    with pytest.raises(InvalidConfigError, match="no node /unknown"):
        await brokers.make(1).start(no_journal)
    with pytest.raises(ZooKeeperUnavailableError, match="does not answer: start it"):
        await brokers.make(1, servers=f"127.0.0.1:{free_port()}", session_timeout_ms=500).start(no_journal)
    assert not (brokers.directory / "data").exists()


# ---- sessions --------------------------------------------------------------------------------------------------------


async def test_a_lost_session_is_followed_by_a_registration_with_a_new_epoch(brokers: Brokers):
    first, second = await brokers.start(1, 2)
    topic_id = await brokers.create_topic("t", 1, 1)
    leader = brokers.running[first.partition_state(topic_id, 0).leader]
    other = second if leader is first else first
    former = leader.registration.broker_epoch
    assert leader.has_lease
    ended = []
    leader.zookeeper.listen(lambda state: ended.append((state.value, leader.has_lease)))
    await expire(leader)
    await eventually_async(lambda: leader.registration.broker_epoch > former, "not registered again")
    node = await brokers.zookeeper.exists(brokers.path(f"/brokers/ids/{leader.broker_id}"))
    assert node.session_id == leader.zookeeper.session_id
    assert ("expired", False) in ended, "the lease ends with the session"
    await eventually_async(lambda: leader.has_lease, "no lease")
    # The watches are set again: changes by others are seen.
    await brokers.create_topic("u", 1, 2)
    await brokers.seen_by([leader, other], lambda it: it.brokers == [1, 2], "not both are there")
    state = leader.partition_state(topic_id, 0)
    assert state.in_sync_replicas == (leader.broker_id,)


async def test_a_broker_whose_id_is_another_process_by_now_leads_nothing(brokers: Brokers, tmp_path, monkeypatch):
    """Stop a broker for longer than its session; a new broker with an empty disk takes its place."""
    (former,) = await brokers.start(1)
    told = []
    former.listen(lambda _, __, state: told.append(state))
    go_on = asyncio.Event()
    register = former.registration.register

    async def later() -> None:
        await go_on.wait()
        await register()

    monkeypatch.setattr(former.registration, "register", later)
    await expire(former)
    await eventually_async(lambda: former.registration.broker_epoch == -1, "not expired")
    other = brokers.make(1, log_directory=tmp_path / "another disk")
    await other.start(no_journal)
    try:
        await other.find_leaders([])
        brokers.running[1] = other
        topic_id = await brokers.create_topic("t", 1, 1)
        assert other.partition_state(topic_id, 0).leader == 1
        await eventually_async(lambda: "t" in former.view.topics, "not seen")
        assert former.partition_state(topic_id, 0).leader == NO_LEADER
        assert not any(state.leader == 1 for state in told)
    finally:
        brokers.running[1] = former
        await other.stop()
    go_on.set()
    await eventually_async(lambda: former.registration.broker_epoch != -1, "not registered")
    await eventually_async(lambda: former.partition_state(topic_id, 0).leader == 1, "leads nothing again")
    await eventually_async(lambda: told[-1].leader == 1, "not told")


async def test_a_registration_that_somebody_removes_is_made_again(brokers: Brokers):
    (one,) = await brokers.start(1)
    former = one.registration.broker_epoch
    await brokers.zookeeper.delete(brokers.path("/brokers/ids/1"))
    await eventually_async(lambda: one.registration.broker_epoch > former, "not registered again")


async def test_a_registration_that_zookeeper_refuses_is_an_error(brokers: Brokers, monkeypatch: pytest.MonkeyPatch):
    (one,) = await brokers.start(1)

    async def refuse(operations: Sequence[Operation]) -> None:
        raise MultiRefusedError(1, operations[1], NoNodeError("/brokers/ids was removed"))

    monkeypatch.setattr(one.zookeeper, "multi", refuse)
    async with asyncio.timeout(5):
        with pytest.raises(NoNodeError, match="was removed"):
            await one.registration._own_node()


async def test_a_brokers_description_outlives_a_session(brokers: Brokers):
    first, second = await brokers.start(1, 2)
    await first.set_offline({"t": [3]})
    await eventually_async(lambda: second.view.brokers[1].registration.offline == {"t": (3,)})
    former = first.registration.broker_epoch
    await expire(first)
    await eventually_async(lambda: 1 in second.view.brokers and second.view.brokers[1].epoch > former)
    assert second.view.brokers[1].registration.offline == {"t": (3,)}


async def answer_unexpectedly(zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give kazoo an unexpected response, which ends its thread (python-zk/kazoo#641)."""
    connection = zookeeper._client._connection
    read_socket = connection._read_socket

    def unexpected(_: float) -> object:
        monkeypatch.setattr(connection, "_read_socket", read_socket)
        raise IndexError("pop from an empty deque")

    monkeypatch.setattr(connection, "_read_socket", unexpected)
    with contextlib.suppress(ZooKeeperUnavailableError):
        await zookeeper.sync()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_answer_that_the_client_does_not_expect_costs_a_session_and_no_more(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
):
    first, second = await brokers.start(1, 2, session_timeout_ms=4_000)
    before = first.registration.broker_epoch
    thread = first.zookeeper._client._connection._connection_routine
    await answer_unexpectedly(first.zookeeper, monkeypatch)
    await eventually_async(lambda: first.registration.broker_epoch > before, "not registered again")
    assert not thread.is_alive()
    await brokers.seen_by([first, second], lambda it: it.brokers == [1, 2], "not both are there")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_answer_to_another_request_costs_no_more_either(brokers: Brokers, monkeypatch: pytest.MonkeyPatch):
    """kazoo fails the waiting request with a RuntimeError, in the middle of a lease renewal."""
    (one,) = await brokers.start(1, session_timeout_ms=4_000)
    before = one.registration.broker_epoch
    connection = one.zookeeper._client._connection
    read_response = connection._read_response

    def of_another(header: object, buffer: object, offset: int) -> object:
        pending = one.zookeeper._client._pending
        if not isinstance(pending[0][0], Sync):
            return read_response(header, buffer, offset)
        _, waiting, _ = pending.popleft()
        monkeypatch.setattr(connection, "_read_response", read_response)
        error = RuntimeError("xids do not match, expected 8 received 7")
        waiting.set_exception(error)
        raise error

    monkeypatch.setattr(connection, "_read_response", of_another)
    await eventually_async(lambda: one.registration.broker_epoch > before, "not registered again")
    await asyncio.sleep(2 * one.zookeeper.session_timeout_s)
    await eventually_async(lambda: one.has_lease, "the lease is not renewed any more")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_that_cannot_be_started_is_started_again(brokers: Brokers, monkeypatch: pytest.MonkeyPatch):
    (one,) = await brokers.start(1, session_timeout_ms=4_000)
    before = one.registration.broker_epoch
    client = one.zookeeper._client
    start_async = client.start_async
    refused = 0

    def refuse() -> object:
        nonlocal refused
        refused += 1
        monkeypatch.setattr(client, "start_async", start_async)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(client, "start_async", refuse)
    await answer_unexpectedly(one.zookeeper, monkeypatch)
    await eventually_async(lambda: one.registration.broker_epoch > before, "not registered again")
    assert refused == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_that_ends_behind_its_session_begins_another(brokers: Brokers, monkeypatch: pytest.MonkeyPatch):
    """kazoo does not report a second loss."""
    first, second = await brokers.start(1, 2)
    before = first.registration.broker_epoch
    connection = first.zookeeper._client._connection
    connect, thread = connection._connect, connection._connection_routine
    has_expired = False

    def unexpected(*where: object) -> object:
        nonlocal has_expired
        if has_expired:
            monkeypatch.setattr(connection, "_connect", connect)
            raise ValueError("an answer of no kind")
        try:
            return connect(*where)
        except SessionExpiredError:
            has_expired = True
            raise

    monkeypatch.setattr(connection, "_connect", unexpected)
    await expire(first)
    await eventually_async(lambda: first.registration.broker_epoch > before, "not registered again")
    assert not thread.is_alive()
    await brokers.seen_by([first, second], lambda it: it.brokers == [1, 2], "not both are there")


async def test_h8_a_new_session_has_no_lease_before_the_view_was_read_in_it(brokers: Brokers):
    """Read the view again, because another broker may have become leader since the previous session."""
    former, _ = await brokers.start(1, 2, session_timeout_ms=4_000)
    may_read = asyncio.Event()
    refresh = former._watched.refresh

    async def refresh_later(paths: Iterable[str]) -> None:
        await may_read.wait()
        await refresh(paths)

    former._watched.refresh = refresh_later  # type: ignore[method-assign]
    before = former.registration.broker_epoch
    await expire(former)
    await eventually_async(lambda: former.registration.broker_epoch not in {-1, before}, "not registered")
    await asyncio.sleep(former.zookeeper.session_timeout_s)  # renewals do not begin it either
    assert not former.registration.lease.is_held
    may_read.set()
    await eventually_async(lambda: former.registration.lease.is_held, "no lease")


async def test_h8_a_broker_that_is_back_is_not_taken_for_dead_by_a_controller_with_an_older_view(brokers: Brokers):
    """Begin the lease with a read of the documents; the controller's later writes from an older view are refused."""
    other, former = await brokers.start(1, 2)
    topic_id = await brokers.create_topic("t", 2, 2)
    seen = next(state for state in (former.partition_state(topic_id, at) for at in (0, 1)) if state.leader == 2)
    controller = other.controller
    assert controller.is_active
    may_write = asyncio.Event()
    written: list[BaseException | None] = []
    write = controller._write

    async def write_later(*args) -> None:
        await may_write.wait()
        try:
            await write(*args)
        except BaseException as error:
            written.append(error)
            raise
        written.append(None)

    controller._write = write_later  # type: ignore[method-assign]
    before = former.registration.broker_epoch
    await expire(former)
    await eventually_async(lambda: former.registration.broker_epoch not in {-1, before}, "not registered")
    await eventually_async(lambda: former.has_lease, "no lease")
    may_write.set()
    await eventually_async(lambda: written, "the controller does not write")
    await eventually_async(lambda: other.view.brokers[2].epoch == former.registration.broker_epoch, "not seen")
    row = next(row for row in (await brokers.document("t")).partitions if row.leader == 2)
    assert row.state == seen, "it leads on, in its epoch"
    assert isinstance(written[0], NotControllerError)
    # Decisions on the new view are written.
    await brokers.stop(2)
    await eventually_async(lambda: other.partition_state(topic_id, 1).leader == 1, "no other leader")
    await eventually_async(lambda: other.partition_state(topic_id, 0).leader == 1, "no other leader")
