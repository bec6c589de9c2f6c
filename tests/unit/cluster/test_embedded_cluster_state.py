"""The embedded cluster state keeps one cluster id for ever, and a leader epoch that only rises."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from logstore.cluster import checked_file
from logstore.cluster.cluster_state import BrokerEndpoint, KnownTopic, PartitionState
from logstore.cluster.embedded_cluster_state import EmbeddedClusterState
from logstore.errors import DataDirectoryError, IneligibleReplicaError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalDiffersError
from logstore.journal.identity import FoundJournal, JournalIdentity

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


EMPTY = FoundJournal(Path("journal"), 0, None, is_empty=True)


@contextlib.asynccontextmanager
async def started(
    data: Path, found: FoundJournal = EMPTY, *, new_journal: bool = False
) -> AsyncIterator[EmbeddedClusterState]:
    cluster_state = EmbeddedClusterState(data, 0, FileSystem(), new_journal=new_journal)
    await cluster_state.start(lambda _: found)
    try:
        yield cluster_state
    finally:
        await cluster_state.stop()


def known(topic_id: UUID, *leader_epochs: int) -> KnownTopic:
    return KnownTopic(topic_id.hex, topic_id, leader_epochs)


async def elected(data: Path, above: int) -> int:
    async with started(data) as cluster_state:
        return await leader_epoch(cluster_state, above)


async def leader_epoch(cluster_state: EmbeddedClusterState, above: int) -> int:
    topic_id = uuid4()
    await cluster_state.find_leaders([known(topic_id, above)])
    return cluster_state.partition_state(topic_id, 0).leader_epoch


async def test_the_cluster_keeps_its_id(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        async with started(tmp_path) as cluster_state:
            await cluster_state.find_leaders([])
            ids.append(cluster_state.cluster_id)
    assert ids[0] == ids[1] != ""


async def test_every_start_leads_with_a_higher_epoch(tmp_path: Path) -> None:
    assert [await elected(tmp_path, 0) for _ in range(3)] == [1, 2, 3]


async def test_an_epoch_is_above_all_that_the_tables_have_seen(tmp_path: Path) -> None:
    # The broker's directory may be lost, but the tables remember the leaders.
    assert await elected(tmp_path, 41) == 42
    assert await elected(tmp_path, 0) == 43


async def test_one_broker_leads_and_holds_every_partition_that_is_known(tmp_path: Path) -> None:
    topic_id = uuid4()
    async with started(tmp_path) as cluster_state:
        await cluster_state.find_leaders([known(topic_id, 6, 2)])
        assert cluster_state.partition_state(topic_id, 1) == PartitionState(0, 7, (0,), (0,))
        for unknown in ((topic_id, 2), (uuid4(), 0)):
            assert cluster_state.partition_state(*unknown) == PartitionState(-1, -1, (), ())
        assert cluster_state.brokers == (0,)
        assert cluster_state.brokers_by_id == {0: BrokerEndpoint(0, None, None)}


async def test_a_listener_hears_of_all_partitions_and_of_each_new_one_once(tmp_path: Path) -> None:
    first, second = uuid4(), uuid4()
    told: list[tuple[UUID, int, PartitionState]] = []
    async with started(tmp_path) as cluster_state:
        await cluster_state.find_leaders([known(first, 0, 0)])
        cluster_state.listen(lambda *event: told.append(event))
        led = PartitionState(0, 1, (0,), (0,))
        assert told == [(first, 0, led), (first, 1, led)]
        cluster_state.set_partitions(known(second, 0))
        cluster_state.set_partitions(known(first, 0, 0, 0))
        cluster_state.set_partitions(known(first, 0, 0, 0))
        assert told[2:] == [(second, 0, led), (first, 2, led)]
        cluster_state.forget_topic(first)
        assert cluster_state.partition_state(first, 0).leader == -1


async def test_a_data_directory_has_one_coordinator_until_it_stops(tmp_path: Path) -> None:
    async with started(tmp_path) as first:
        assert all(lock.held for lock in first.locks)
        await first.find_leaders([])
        with pytest.raises(DataDirectoryError, match="Another process is serving"):
            await EmbeddedClusterState(tmp_path, 0, FileSystem()).start(lambda _: EMPTY)
    async with started(tmp_path) as second:
        assert second.cluster_id == first.cluster_id


async def test_a_producer_id_is_issued_once_and_above_those_of_earlier_starts(tmp_path: Path) -> None:
    issued: list[int] = []
    for _ in range(2):
        async with started(tmp_path) as cluster_state:
            await leader_epoch(cluster_state, 0)
            issued += [await cluster_state.new_producer_id() for _ in range(3)]
            assert all(cluster_state.is_issued(one) for one in issued)
            assert not cluster_state.is_issued(issued[-1] + 1)
    assert issued == sorted(set(issued))


async def test_a_directory_of_version_1_is_taken_over_and_earlier_releases_refuse_it_then(
    tmp_path: Path,
) -> None:
    cluster_file = tmp_path / "cluster.json"
    cluster_file.write_bytes(checked_file.encode({"cluster_id": "kept", "format_version": 1}))
    for _ in range(2):
        async with started(tmp_path) as cluster_state:
            assert cluster_state.cluster_id == "kept"
            await cluster_state.find_leaders([])
        # Releases of version 1 compare this number first, and refuse any other number.
        assert json.loads(cluster_file.read_text())["format_version"] == 2


@pytest.mark.parametrize("content", ['{"cluster_id": "x", "format_version": 99}', "{", "[]"])
async def test_a_directory_of_another_kind_is_refused_and_let_go(tmp_path: Path, content: str) -> None:
    cluster_file = tmp_path / "cluster.json"
    cluster_file.write_text(content)
    with pytest.raises(DataDirectoryError):
        await elected(tmp_path, 0)
    cluster_file.unlink()
    assert await elected(tmp_path, 0) == 1


async def test_a_directory_of_a_cluster_is_not_one_nodes(tmp_path: Path) -> None:
    content = {"cluster_id": "c", "format_version": 2, "coordinator": "zookeeper"}
    (tmp_path / "cluster.json").write_bytes(checked_file.encode(content))
    with pytest.raises(DataDirectoryError, match=r"belongs to a cluster.*zookeeper\.connect"):
        await EmbeddedClusterState(tmp_path, 0, FileSystem()).start(lambda _: EMPTY)


async def test_one_node_is_its_own_controller_and_only_replica(tmp_path: Path) -> None:
    topic_id = uuid4()
    async with started(tmp_path) as cluster_state:
        await cluster_state.find_leaders([known(topic_id, 0)])
        state = cluster_state.partition_state(topic_id, 0)
        assert (cluster_state.controller_id, cluster_state.has_lease) == (0, True)
        assert await cluster_state.alter_partition(topic_id, 0, state, [0], broker_epochs={}) == state
        with pytest.raises(IneligibleReplicaError):
            await cluster_state.alter_partition(topic_id, 0, state, [0, 1], broker_epochs={1: 1})


async def test_a_broker_whose_start_was_refused_owns_nothing(tmp_path: Path) -> None:
    """Leave a lock file, as a refused start does, such as that of a cluster that found no ZooKeeper."""
    other = tmp_path / "brokers" / "4"
    other.mkdir(parents=True)
    journal = other / "journal" / "0"
    journal.mkdir(parents=True)
    for directory in (other, journal):
        (directory / "lock").touch()
    async with started(tmp_path):
        pass
    (other / "moved" / "journal").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match=r"set broker\.id to 4"):
        async with started(tmp_path):
            pass


# ---- the journal -----------------------------------------------------------------------------------------------------


def files_of(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*.json")}


async def begun(data: Path, durable_end: int) -> JournalIdentity:
    """Start with a new journal that is durable up to ``durable_end``, and return the journal's identity."""
    async with started(data) as cluster_state:
        await cluster_state.find_leaders([])
        cluster_state.journal_record.record(durable_end, 1, 0)
        return cluster_state.journal_record.identity


@pytest.mark.parametrize(
    ("end", "is_same", "is_empty", "message"),
    [
        (0, False, True, "it has no files, and it was durable up to position 700"),
        (699, True, False, "it ends at position 699, and it was durable up to 700"),
        (9000, False, False, "it is that of the directory id .*, and not of"),
        (9000, None, False, "an earlier release wrote its newest file"),
    ],
)
async def test_a_journal_that_is_not_the_one_that_stood_here_is_refused_and_nothing_changes(
    tmp_path: Path, end: int, is_same: bool | None, is_empty: bool, message: str
) -> None:
    identity = await begun(tmp_path, 700)
    other = identity if is_same else None if is_same is None or is_empty else JournalIdentity(uuid4(), 1)
    found = FoundJournal(tmp_path / "journal", end, other, is_empty, () if is_empty else ((0, 1 if is_same else 2),))
    before = files_of(tmp_path)
    with pytest.raises(DataDirectoryError, match=rf"not the one that was here before: {message}.*--new-journal"):
        async with started(tmp_path, found):
            pass
    assert files_of(tmp_path) == before
    whole = FoundJournal(tmp_path, 700, identity, is_empty=False, files=((0, 1),))
    async with started(tmp_path, whole) as cluster_state:
        await cluster_state.find_leaders([])
    async with started(tmp_path, found, new_journal=True) as cluster_state:
        await cluster_state.find_leaders([])
        new = cluster_state.journal_record.identity
        assert new.directory_id != identity.directory_id
    # After a crash before the first file, the choice still holds.
    async with started(tmp_path, found):
        pass


async def test_a_new_journal_is_refused_where_nothing_is_wrong(tmp_path: Path) -> None:
    identity = await begun(tmp_path, 700)
    whole = FoundJournal(tmp_path, 800, identity, is_empty=False, files=((0, 1),))
    with pytest.raises(DataDirectoryError, match="start without --new-journal"):
        async with started(tmp_path, whole, new_journal=True):
            pass


async def test_the_epoch_is_above_that_of_the_start_that_began_the_journal(tmp_path: Path) -> None:
    """Keep an older image of the file beside the journal."""
    identity = await begun(tmp_path, 700)
    newer = FoundJournal(tmp_path, 800, identity._replace(incarnation=41), is_empty=False, files=((0, 1),))
    async with started(tmp_path, newer) as cluster_state:
        assert await leader_epoch(cluster_state, 0) == 42


async def test_a_directory_of_an_earlier_release_is_taken_with_any_journal(tmp_path: Path) -> None:
    """Take a directory that does not record how far its journal was durable."""
    home = tmp_path / "brokers" / "0"
    home.mkdir(parents=True)
    (home / "broker.json").write_bytes(checked_file.encode({"leader_epoch": 7}))
    with pytest.raises(JournalDiffersError, match=r"it has no files, and this directory was in use .*--new-journal"):
        async with started(tmp_path):
            pass
    found = FoundJournal(tmp_path, 800, None, is_empty=False, files=((0, 1), (600, 2)))
    async with started(tmp_path, found) as cluster_state:
        assert await leader_epoch(cluster_state, 0) == 8
    with pytest.raises(JournalDiffersError, match="it has no files, and it was durable up to position 600"):
        async with started(tmp_path):
            pass


async def test_a_start_that_ended_before_its_first_file_may_find_none_again(tmp_path: Path) -> None:
    for epoch in (1, 2):
        async with started(tmp_path) as cluster_state:
            assert await leader_epoch(cluster_state, 0) == epoch


async def test_a_start_that_is_refused_leaves_the_format_of_an_earlier_release(tmp_path: Path) -> None:
    cluster_file = tmp_path / "cluster.json"
    cluster_file.write_bytes(checked_file.encode({"cluster_id": "kept", "format_version": 1}))

    def refuse(_: object) -> FoundJournal:
        raise DataDirectoryError("start the release that wrote it")

    before = files_of(tmp_path)
    with pytest.raises(DataDirectoryError, match="release that wrote it"):
        await EmbeddedClusterState(tmp_path, 0, FileSystem()).start(refuse)
    assert files_of(tmp_path) == before
    assert not (tmp_path / "brokers").exists()
