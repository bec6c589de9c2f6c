"""The files that a cluster on this machine leaves for its next start."""

from pathlib import Path

import pytest

from logstore.cluster import checked_file
from logstore.cluster_processes.record import ClusterProcessesError, Directory, Record, broker_ids, check_directory
from logstore.filesystem import FileSystem


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    found = Directory(tmp_path / "data")
    found.home.mkdir(parents=True)
    return found


def write_cluster_file(directory: Directory, **more: str) -> None:
    checked_file.write(FileSystem(), directory.data / "cluster.json", {"cluster_id": "x", "format_version": 2, **more})


def test_a_record_is_read_as_it_was_written(directory: Directory) -> None:
    assert Record.read(directory) is None
    written = Record(None, 2181, {1: 8082, 2: 8083}, {1: 9092})
    written.write(directory)
    assert Record.read(directory) == written
    directory.record.write_text('{"ports": {"one": 1}}')
    with pytest.raises(ClusterProcessesError, match=r"processes\.json is not what was written"):
        Record.read(directory)


def test_the_broker_of_one_node_has_to_be_among_them(directory: Directory) -> None:
    check_directory(directory, None, None, [1])
    write_cluster_file(directory)
    (directory.data / "brokers" / "7" / "journal").mkdir(parents=True)
    with pytest.raises(ClusterProcessesError, match=r"a store of one node, broker 7: set broker\.id to 7"):
        check_directory(directory, None, "zk:2181", [0, 1])
    check_directory(directory, None, None, [7, 8])
    assert broker_ids(directory, 3) == range(7, 10)


def test_ids_are_those_of_the_last_start(directory: Directory) -> None:
    assert broker_ids(directory, 2) == range(1, 3)
    Record(None, 2181, {4: 1, 3: 2}).write(directory)
    write_cluster_file(directory, coordinator="zookeeper")
    assert broker_ids(directory, 3) == range(3, 6)


def test_a_cluster_whose_zookeeper_is_elsewhere_has_to_name_it(directory: Directory) -> None:
    write_cluster_file(directory, coordinator="zookeeper")
    with pytest.raises(ClusterProcessesError, match="name it with --zookeeper"):
        check_directory(directory, None, None, [1])
    check_directory(directory, None, "zk:2181", [1])
    check_directory(directory, Record(), None, [1])


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(ClusterProcessesError, match="is no directory"):
        check_directory(Directory(tmp_path / "data"), None, None, [1])
