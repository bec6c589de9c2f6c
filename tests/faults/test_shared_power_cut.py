"""The power of one machine fails while it shares the tree with others: the changes of these others stay."""

import random
import shutil
from pathlib import Path

import pytest

from tests.support.faulty_filesystem import FaultyFileSystem


def _broker(root: Path, number: int) -> FaultyFileSystem:
    filesystem = FaultyFileSystem(root)
    own = root / "brokers" / str(number)
    filesystem.of_others = lambda path: path.parent == own.parent and path != own
    return filesystem


def _write(filesystem: FaultyFileSystem, path: Path, *, durable: bool) -> None:
    filesystem.make_directory(path.parent)
    fd = filesystem.create(path)
    filesystem.write_at(fd, [b"content"], 0)
    if durable:
        filesystem.fdatasync(fd)
        filesystem.sync_directory(path.parent)
    filesystem.close(fd)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_takes_nothing_that_another_machine_has_made(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    cut, other = _broker(root, 1), _broker(root, 2)
    _write(other, root / "brokers" / "2" / "lock", durable=False)
    _write(other, root / "topics" / "t" / "entry", durable=True)
    _write(cut, root / "brokers" / "1" / "journal", durable=True)
    cut.power_cut(random.Random(seed))
    assert (root / "brokers" / "2" / "lock").read_bytes() == b"content"
    assert (root / "topics" / "t" / "entry").read_bytes() == b"content"


def test_a_power_cut_brings_back_no_directory_or_link_that_somebody_else_has_taken_away(tmp_path: Path) -> None:
    root = tmp_path / "data"
    topics = root / "topics"
    _write(FaultyFileSystem(), topics / "t" / "entry", durable=False)
    _write(FaultyFileSystem(), topics / "copy" / "entry", durable=False)
    (topics / "link").symlink_to("t")
    cut = FaultyFileSystem(root)
    shutil.rmtree(topics / "copy")
    (topics / "link").unlink()
    cut.remove_tree(topics / "t")
    cut.power_cut(random.Random(1), strict=True)
    assert [path.name for path in topics.iterdir()] == ["t"], "its removal was not synced"


def test_a_power_cut_takes_what_its_machine_has_not_synced(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    cut, other = _broker(root, 1), _broker(root, 2)
    _write(other, root / "topics" / "t" / "entry", durable=True)
    _write(cut, root / "topics" / "mine" / "entry", durable=False)
    _write(cut, root / "topics" / "t" / "another", durable=False)
    cut.power_cut(random.Random(1), strict=True)
    assert not (root / "topics" / "mine" / "entry").exists()
    assert not (root / "topics" / "t" / "another").exists()
