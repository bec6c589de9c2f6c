"""A look at a growing journal never takes growth for damage, nor damage for growth."""

import asyncio
from pathlib import Path

import pytest

from logstore.errors import StorageError
from logstore.filesystem import FileSystem
from logstore.inspection.journal import verify
from logstore.inspection.observed_journal import ObservedJournal
from logstore.journal.errors import JournalCorruptionError
from logstore.journal.journal_file import list_files
from tests.support.damage import cut, flip_bit
from tests.support.journals import data_frame, offsets, running


class LateReader(FileSystem):
    """A file system that reads a file as before its last ``late`` bytes changed, until ``catch_up`` reads were made."""

    def __init__(self, path: Path, before: bytes, catch_up: int) -> None:
        super().__init__()
        self._path, self._before, self._left = path, before, catch_up
        self._fds: set[int] = set()

    def open_read(self, path: Path | str) -> int:
        fd = super().open_read(path)
        if Path(path) == self._path:
            self._fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._fds.discard(fd)
        super().close(fd)

    def read_at(self, fd: int, length: int, position: int) -> bytes:
        content = super().read_at(fd, length, position)
        if fd in self._fds and self._left > 0:
            self._left -= 1
            return self._before[position : position + length].ljust(len(content), b"\0")
        return content


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, bytes]:
    """Return a journal of six groups in one file, and that file as it was after three."""

    async def scenario() -> bytes:
        async with running(tmp_path) as (journal, _):
            for number in range(6):
                await journal.append([data_frame(number, bytes(300))])
                if number == 2:
                    before = list_files(tmp_path, FileSystem())[-1][1].read_bytes()
            return before

    return tmp_path, asyncio.run(scenario())


@pytest.mark.parametrize("catch_up", [1, 2, 3])
def test_frames_that_were_not_there_yet_are_no_damage(grown, catch_up):
    directory, before = grown
    ((_, path),) = list_files(directory, FileSystem())
    journal = ObservedJournal(directory, LateReader(path, before, catch_up))
    found = list(journal.frames())
    assert offsets(found) in ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    assert verify(directory, LateReader(path, before, catch_up)).damage is None


def test_damage_at_the_same_place_is_damage(grown):
    directory, _ = grown
    ((start, path),) = list_files(directory, FileSystem())
    third = next(frame for frame in ObservedJournal(directory).frames() if frame.header.base_offset == 2)
    flip_bit(path, third.location.position - start + 200)
    with pytest.raises(JournalCorruptionError) as raised:
        list(ObservedJournal(directory).frames())
    assert raised.value.position == third.location.position


def test_damage_in_a_file_that_another_follows_is_damage(tmp_path):
    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            for number in range(6):
                await journal.append([data_frame(number, bytes(400))])

    asyncio.run(scenario())
    files = list_files(tmp_path, FileSystem())
    assert len(files) > 1
    cut(files[0][1], 600)
    with pytest.raises(JournalCorruptionError):
        list(ObservedJournal(tmp_path).frames())


def test_records_come_with_their_payloads(grown):
    directory, _ = grown
    frames = list(ObservedJournal(directory).records(lambda header: header.base_offset >= 4))
    assert [(frame.header.base_offset, bytes(frame.payload)) for frame in frames] == [(4, bytes(300)), (5, bytes(300))]


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(StorageError, match="there is no journal directory"):
        ObservedJournal(tmp_path / "nowhere")
