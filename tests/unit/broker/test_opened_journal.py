"""A broker opens its journal at its start: a journal that is not its own, and what a refusal leaves open."""

import errno
import shutil
import threading
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.cluster.log_directory import OneNodeDirectory
from logstore.errors import CorruptionError, DataDirectoryError, StorageError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalDiffersError
from logstore.log.journal_tail import JournalTail
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.virtual_time import run


def open_files(directory: Path) -> list[Path]:
    found = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [path for path in found if path.is_relative_to(directory)]


def begin(data: Path) -> None:
    async def scenario() -> None:
        async with running_broker(data):
            pass

    run(scenario())


def test_a_start_that_is_refused_leaves_no_file_of_the_journal_open(tmp_path: Path) -> None:
    begin(tmp_path)
    home = tmp_path / "brokers" / "0"
    OneNodeDirectory.open(home, FileSystem()).record(home, FileSystem()).record(10**9, 1, 0)
    with pytest.raises(DataDirectoryError, match="it ends at position"):
        begin(tmp_path)
    assert open_files(tmp_path) == []


def test_a_journal_that_cannot_be_understood_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await broker.topics.changes.create(INTERNAL, "t")

    def refuse(_: object) -> None:
        raise CorruptionError("a snapshot does not parse")

    run(scenario())
    monkeypatch.setattr(JournalTail, "settle", refuse)
    with pytest.raises(CorruptionError):
        begin(tmp_path)
    assert open_files(tmp_path) == []


def test_a_start_that_cannot_begin_a_file_leaves_no_file_open_and_no_thread(tmp_path: Path) -> None:
    class Broken(FileSystem):
        def create(self, path: Path) -> int:
            raise OSError(errno.EIO, f"cannot create {path}")

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=Broken()):
            pass

    threads = threading.active_count()
    with pytest.raises(StorageError, match="could not create journal file"):
        run(scenario())
    assert open_files(tmp_path) == []
    assert threading.active_count() <= threads


@pytest.mark.parametrize("is_older", [True, False])
def test_a_journal_that_is_gone_or_older_is_refused_until_it_is_back_or_given_up(
    tmp_path: Path, is_older: bool
) -> None:
    data, away, image = tmp_path / "data", tmp_path / "away", tmp_path / "image"
    journal = data / "brokers" / "0" / "journal"

    async def serve(*values: bytes, seal: bool = False, new_journal: bool = False) -> list[bytes | None]:
        """Store the values and return all; with ``seal``, store them in a new topic whose table then has them."""
        async with running_broker(data, new_journal=new_journal) as broker:
            topic = (
                await broker.topics.changes.create(INTERNAL, "t") if seal else broker.topics.served.topic(INTERNAL, "t")
            )
            for value in values:
                await produce(broker, topic, [value])
            if seal:
                await broker.topics.tables.roll(INTERNAL, topic)
            else:
                broker._schedule.roll_at_stop = _nothing
            return [value for _, value in await read_all(broker, topic)]

    run(serve(b"a", seal=True))
    shutil.copytree(journal, image)
    assert run(serve(b"b")) == [b"a", b"b"]
    journal.rename(away)
    if is_older:
        shutil.copytree(image, journal)
    before = {path: path.read_bytes() for path in data.rglob("*.json")}
    with pytest.raises(JournalDiffersError, match="--new-journal"):
        run(serve())
    assert {path: path.read_bytes() for path in data.rglob("*.json")} == before
    if journal.exists():
        shutil.rmtree(journal)
    shutil.copytree(away, journal)
    assert run(serve()) == [b"a", b"b"], "it is back"
    with pytest.raises(DataDirectoryError, match="start without --new-journal"):
        run(serve(new_journal=True))
    shutil.rmtree(journal)
    assert run(serve(b"c", new_journal=True)) == [b"a", b"c"]
    assert run(serve()) == [b"a", b"c"]
    shutil.rmtree(journal)
    away.rename(journal)
    with pytest.raises(JournalDiffersError, match="it is that of the directory id"):
        run(serve())


async def _nothing() -> None:
    """Leave the records in the journal."""
