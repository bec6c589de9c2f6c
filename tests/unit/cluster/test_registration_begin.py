"""Before it joins a cluster, a broker looks at its journal and at the directory of a store of one node."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from logstore.clock import SystemClock
from logstore.cluster import checked_file
from logstore.cluster.log_directory import LogDirectory
from logstore.cluster.registration import Registration
from logstore.cluster.zookeeper import Servers, ZooKeeper
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalCorruptionError, JournalDiffersError
from logstore.journal.identity import FoundJournal, JournalIdentity
from tests.support.running_broker import running_broker
from tests.support.virtual_time import run


def registration(data: Path, log_directory: Path) -> Registration:
    clock = SystemClock()
    zookeeper = ZooKeeper(Servers.parse("127.0.0.1:1"), clock=clock)  # never connected
    return Registration(zookeeper, data, log_directory, 0, FileSystem(), clock, url="", peer="", rack=None)


async def start_one_node(data: Path) -> None:
    async with running_broker(data):
        pass


def test_a_journal_that_was_moved_to_log_dirs_is_not_looked_for_where_a_refused_start_left_a_lock(
    tmp_path: Path,
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "log"
    run(start_one_node(data))
    looking = registration(data, elsewhere)
    with pytest.raises(DataDirectoryError, match=r"move .*/brokers/0/journal into .*log"):
        looking.look_at_data()
    elsewhere.mkdir()
    (data / "brokers" / "0" / "journal").rename(elsewhere / "journal")
    with pytest.raises(DataDirectoryError, match="it has no files"):  # one node has no log.dirs
        run(start_one_node(data))
    looking.look_at_data()
    assert looking.is_migration
    assert "coordinator" not in checked_file.read(FileSystem(), data / "cluster.json", "")
    looking.release()


def test_an_empty_place_of_the_journal_is_refused_where_it_is_not_known_how_far_it_was_durable(tmp_path: Path) -> None:
    """Use the directory of an earlier release whose journal is on a file system that is not mounted."""
    data, elsewhere = tmp_path / "data", tmp_path / "log"
    run(start_one_node(data))
    home = data / "brokers" / "0"
    (home / "broker.json").write_bytes(checked_file.encode({"leader_epoch": 1}))
    (home / "journal").rename(tmp_path / "not-mounted")
    (home / "journal").mkdir()
    with pytest.raises(DataDirectoryError, match=r"move .*/brokers/0/journal into"):
        registration(data, elsewhere).look_at_data()


@pytest.mark.parametrize("lost", ["gone", "older", "of the time before a restore", "without its oldest file"])
def test_c12_a_journal_that_is_not_the_one_that_stood_here_gets_a_directory_id_that_zookeeper_has_not(
    tmp_path: Path, lost: str
) -> None:
    looking = registration(tmp_path, tmp_path)
    looking.cluster_id = "c"
    new = LogDirectory.open(tmp_path, FileSystem(), "c", 0)
    directory = replace(new, durable_end=700, file_id=7, begin=100, incarnation=1)
    directory.write(tmp_path, FileSystem())
    identity = JournalIdentity(directory.directory_id, 1)
    whole = FoundJournal(tmp_path, 800, identity, is_empty=False, files=((100, 6), (600, 7)))
    assert looking._open_directory(whole) == directory
    found = {
        "gone": FoundJournal(tmp_path, 0, None, is_empty=True),
        "older": replace(whole, end=699),
        "of the time before a restore": replace(whole, files=((100, 6), (600, 8))),
        "without its oldest file": replace(whole, files=whole.files[1:]),
    }[lost]
    other = looking._open_directory(found)
    assert other.directory_id != directory.directory_id
    assert other.durable_end == (0 if lost == "gone" else 600)
    assert other.expected.difference(found) is None, "a start that ends before its first file has accepted it"
    assert directory.expected.is_begun_in(whole)
    # This start may find a hole in the journal, and so may later ones, until one has begun and recorded its own file.
    assert other.expected.is_begun_in(found) == (lost == "gone")
    begun = replace(found, is_empty=False, identity=JournalIdentity(other.directory_id, 2))
    assert replace(other, durable_end=900).expected.is_begun_in(begun)
    assert LogDirectory.read(tmp_path, FileSystem()) == directory, "a start that ends here finds the same"


def test_a_journal_that_another_directory_wrote_is_refused_and_own_ones_of_earlier_are_not(tmp_path: Path) -> None:
    looking = registration(tmp_path, tmp_path)
    looking.cluster_id = "c"
    new = LogDirectory.open(tmp_path, FileSystem(), "c", 0)
    directory = replace(new, durable_end=700, file_id=7, begin=0, incarnation=1).with_new_journal()
    directory = replace(directory, durable_end=500, file_id=9, begin=0)
    directory.write(tmp_path, FileSystem())
    before = (tmp_path / "meta.json").read_bytes()
    own = FoundJournal(tmp_path, 800, JournalIdentity(new.directory_id, 1), is_empty=False, files=((0, 7),))
    assert looking._open_directory(own).former_ids == (new.directory_id, directory.directory_id)
    for files in (((0, 5),), ()):
        found = replace(own, identity=JournalIdentity(uuid4(), 1), files=files)
        with pytest.raises(
            JournalDiffersError, match=r"(?s)that of the directory id .*mount the one that belongs here"
        ):
            looking._open_directory(found)
    assert (tmp_path / "meta.json").read_bytes() == before


def test_a_directory_of_an_earlier_release_is_taken_with_any_journal_but_not_without_one(tmp_path: Path) -> None:
    looking = registration(tmp_path, tmp_path)
    looking.cluster_id = "c"
    before = replace(LogDirectory.open(tmp_path, FileSystem(), "c", 0), incarnation=3)
    before.write(tmp_path, FileSystem())
    found = FoundJournal(tmp_path, 800, None, is_empty=False, files=((0, 7),))
    assert looking._open_directory(found) == replace(before, durable_end=0, file_id=7, begin=0)
    empty = FoundJournal(tmp_path, 0, None, is_empty=True)
    assert looking._open_directory(empty).directory_id != before.directory_id


def test_a_migration_without_the_journal_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run(start_one_node(data))
    home = data / "brokers" / "0"
    looking = registration(data, home)
    looking.cluster_id = "c"
    looking.look_at_data()
    before = {path: path.read_bytes() for path in data.rglob("*.json")}
    with pytest.raises(JournalDiffersError, match=r"it has no files.*without zookeeper\.connect, with --new-journal"):
        looking._open_directory(FoundJournal(home, 0, None, is_empty=True))
    assert {path: path.read_bytes() for path in data.rglob("*.json")} == before
    looking.release()


@pytest.mark.parametrize("is_migration", [True, False])
def test_the_log_directory_is_only_to_be_removed_where_other_brokers_may_have_the_records(
    tmp_path: Path, is_migration: bool
) -> None:
    data = tmp_path / "data"
    if is_migration:
        run(start_one_node(data))
    cluster_state = ZooKeeperClusterState(
        "127.0.0.1:1", data, data / "brokers" / "0", 0, FileSystem(), url="", peer="", clock=SystemClock()
    )

    def read(_: object) -> FoundJournal:
        raise JournalCorruptionError(data / "brokers/0/journal/0/0.log", 7, "a bad frame")

    with pytest.raises(JournalCorruptionError) as refused:
        run(cluster_state.start(read))
    assert ("Remove the log directory" in refused.value.message) is not is_migration
    assert ("logstore journal repair" in refused.value.message) is is_migration
