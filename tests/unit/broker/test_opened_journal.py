"""The journal of a broker at its start: what a start that is refused leaves open."""

from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.cluster.log_directory import OneNodeDirectory
from logstore.errors import CorruptionError, DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.log.journal_tail import JournalTail
from tests.support.running_broker import run, running_broker


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
    OneNodeDirectory.open(home).record(home, FileSystem()).record(10**9)
    with pytest.raises(DataDirectoryError, match="it ends at position"):
        begin(tmp_path)
    assert open_files(tmp_path) == []


def test_a_journal_that_cannot_be_understood_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await broker.create_topic(INTERNAL, "t")

    def refuse(_: object) -> None:
        raise CorruptionError("a snapshot does not parse")

    run(scenario())
    monkeypatch.setattr(JournalTail, "settle", refuse)
    with pytest.raises(CorruptionError):
        begin(tmp_path)
    assert open_files(tmp_path) == []
