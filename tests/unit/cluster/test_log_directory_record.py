"""The places that brokers have recorded for their log directories, and which of them hold on this machine."""

import uuid
from pathlib import Path

import pytest

from logstore.cluster import checked_file
from logstore.cluster.log_directory import LogDirectory
from logstore.cluster.log_directory_record import RECORD, BrokerDirectory, broker_directories, record_log_directory
from logstore.filesystem import local_filesystem

CLUSTER = "a-cluster"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    checked_file.write(local_filesystem(), tmp_path / "data" / "cluster.json", {"cluster_id": CLUSTER})
    return tmp_path / "data"


def log_directory(path: Path, broker_id: int, cluster_id: str = CLUSTER) -> Path:
    LogDirectory(uuid.uuid4(), None, cluster_id, broker_id, 0).begun(path, local_filesystem(), 0)
    (path / "journal" / "0").mkdir(parents=True)
    return path


def record(data: Path, broker_id: int, path: Path) -> None:
    record_log_directory(local_filesystem(), data, broker_id, path)


def test_directories_in_the_data_directory_and_elsewhere_are_found(data: Path, tmp_path: Path) -> None:
    inside = [log_directory(data / "brokers" / str(broker), broker) for broker in (10, 2)]
    elsewhere = log_directory(tmp_path / "disk", 3)
    for broker, path in ((10, inside[0]), (2, inside[1]), (3, elsewhere)):
        record(data, broker, path)
    assert not list(data.glob(f"brokers/2/{RECORD}"))
    expected = [BrokerDirectory("2", inside[1]), BrokerDirectory("3", elsewhere), BrokerDirectory("10", inside[0])]
    assert broker_directories(data) == expected
    assert broker_directories(data, [elsewhere, inside[0]]) == expected, "each once"


def test_a_broker_that_moves_is_found_where_it_is(data: Path, tmp_path: Path) -> None:
    home = log_directory(data / "brokers" / "1", 1)
    for path in (log_directory(tmp_path / "a", 1), log_directory(tmp_path / "b", 1)):
        record(data, 1, path)
        assert broker_directories(data) == [BrokerDirectory("1", home), BrokerDirectory("1", path)]
    record(data, 1, home)
    assert broker_directories(data) == [BrokerDirectory("1", home)]


@pytest.mark.parametrize("there", ["nothing", "another broker's", "another cluster's", "damaged"])
def test_a_path_that_is_not_the_brokers_here_is_out_of_reach(data: Path, tmp_path: Path, there: str) -> None:
    """Record a path which on this machine may be the directory of another broker."""
    path = tmp_path / "disk"
    if there != "nothing":
        log_directory(path, 2 if there == "another broker's" else 1, "b" if there == "another cluster's" else CLUSTER)
    if there == "damaged":
        (path / "meta.json").write_text("{}")
    record(data, 1, path)
    (found,) = broker_directories(data)
    assert found.broker == "1"
    assert found.out_of_reach is not None
    assert str(path) in found.out_of_reach
    named = log_directory(tmp_path / "mounted", 1)
    assert broker_directories(data, [named]) == [BrokerDirectory("1", named)]


def test_a_damaged_record_is_reported(data: Path, tmp_path: Path) -> None:
    record(data, 1, log_directory(tmp_path / "disk", 1))
    file = data / "brokers" / "1" / RECORD
    file.write_text(file.read_text().replace("disk", "disc"))
    (found,) = broker_directories(data)
    assert found.out_of_reach is not None
    assert f"{file} is damaged" in found.out_of_reach
    assert "remove it: the broker writes it when it starts" in found.out_of_reach
