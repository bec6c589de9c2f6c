"""All brokers on a data directory share one secret."""

from pathlib import Path

from logstore.broker.produce.secret import load_secret, load_shared_secret
from logstore.filesystem import FileSystem


class Slow(FileSystem):
    """A file system on which another broker writes its secret at the last moment."""

    def link(self, old: Path, new: Path) -> None:
        if not new.exists():
            load_shared_secret(new.parent, new.parent / "none", FileSystem())
        super().link(old, new)


def test_brokers_that_start_at_once_have_the_same_secret(tmp_path: Path):
    mine = load_shared_secret(tmp_path, tmp_path / "brokers/1", Slow())
    assert load_shared_secret(tmp_path, tmp_path / "brokers/2", FileSystem()) == mine
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_the_secret_of_one_node_becomes_that_of_its_cluster(tmp_path: Path):
    home = tmp_path / "brokers/0"
    home.mkdir(parents=True)
    mine = load_secret(home, FileSystem())
    assert load_shared_secret(tmp_path, home, FileSystem()) == mine
    assert load_shared_secret(tmp_path, tmp_path / "brokers/1", FileSystem()) == mine
