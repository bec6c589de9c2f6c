"""The identity of a log directory: durable, and that of one broker of one cluster."""

from pathlib import Path

import pytest

from logstore.cluster import checked_file
from logstore.cluster.log_directory import LogDirectory
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem


def test_an_identity_is_kept_and_its_incarnation_rises(tmp_path: Path):
    path = tmp_path / "broker"
    assert LogDirectory.read(path) is None
    new = LogDirectory.open(path, "c", 1)
    first = new.begun(path, FileSystem(), 0)
    assert LogDirectory.open(path, "c", 1) == first
    assert (first.directory_id, first.incarnation) == (new.directory_id, 1)
    assert first.begun(path, FileSystem(), 7).incarnation == 8
    assert LogDirectory.read(path).incarnation == 8


def test_c19_another_brokers_or_clusters_directory_is_refused(tmp_path: Path):
    LogDirectory.open(tmp_path, "c", 1).begun(tmp_path, FileSystem(), 0)
    with pytest.raises(DataDirectoryError, match=r"directory of broker 1, not of 2: set broker\.id to 1"):
        LogDirectory.open(tmp_path, "c", 2)
    with pytest.raises(DataDirectoryError, match=r"of the cluster c, and ZooKeeper's is d: correct zookeeper\.connect"):
        LogDirectory.open(tmp_path, "d", 1)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", checked_file.encode({"cluster_id": "c"})])
def test_a_damaged_identity_is_refused(tmp_path: Path, content):
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"meta\.json is damaged: .*leaves its ISRs"):
        LogDirectory.open(tmp_path, "c", 1)
