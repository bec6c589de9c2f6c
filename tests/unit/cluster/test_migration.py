"""The data directory of a store of one node that becomes a cluster's: what a broker looks at before it joins."""

from pathlib import Path

import pytest

from logstore.clock import SystemClock
from logstore.cluster import checked_file
from logstore.cluster.registration import Registration
from logstore.cluster.zookeeper import Servers, ZooKeeper
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from tests.support.running_broker import run, running_broker


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
    assert "coordinator" not in checked_file.read(data / "cluster.json", "")
    looking.release()


def test_an_empty_place_of_the_journal_is_refused_where_it_is_not_known_how_far_it_was_durable(tmp_path: Path) -> None:
    """The directory of an earlier release, of which the journal's file system is not mounted."""
    data, elsewhere = tmp_path / "data", tmp_path / "log"
    run(start_one_node(data))
    home = data / "brokers" / "0"
    (home / "broker.json").write_bytes(checked_file.encode({"leader_epoch": 1}))
    (home / "journal").rename(tmp_path / "not-mounted")
    (home / "journal").mkdir()
    with pytest.raises(DataDirectoryError, match=r"move .*/brokers/0/journal into"):
        registration(data, elsewhere).look_at_data()
