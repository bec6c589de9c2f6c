"""``cluster.json`` of a new cluster, whose brokers write it at the same time."""

from pathlib import Path

from logstore.cluster.registration import write_cluster_file
from logstore.filesystem import FileSystem, local_filesystem


class _Interrupted(FileSystem):
    """A file system on which another broker writes the file just before this one renames its own."""

    def rename(self, old: Path, new: Path) -> None:
        write_cluster_file(local_filesystem(), new.parent, "id")
        super().rename(old, new)


def test_brokers_write_it_at_one_time(tmp_path: Path):
    write_cluster_file(_Interrupted(), tmp_path, "id")
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]
