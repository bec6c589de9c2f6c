"""The identity of a journal: the heads of its files, the position beside it, and files that lose their names."""

import asyncio
import os
import random
import threading
from pathlib import Path
from uuid import uuid4

import pytest
import structlog

from logstore.errors import BrokerNotReadyError, JournalFileLostError, StorageError
from logstore.filesystem import FileSystem
from logstore.journal import journal as journal_module
from logstore.journal import position_recorder
from logstore.journal.identity import ExpectedJournal, JournalIdentity
from logstore.journal.scan import JournalScan
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.journals import TOPIC, MemoryRecord, data_frame, new_journal, running
from tests.support.virtual_time import run


def end_of(directory: Path) -> int:
    scan = JournalScan(directory, FileSystem())
    list(scan.frames())
    return scan.verdict.end


def test_each_file_says_whose_it_is(tmp_path: Path) -> None:
    directory_id = uuid4()

    async def scenario() -> None:
        for start in (1, 2):
            async with running(tmp_path, record=MemoryRecord(directory_id, start)) as (journal, _):
                assert (await journal.append([data_frame(start - 1)])) != []

    run(scenario())
    scan = JournalScan(tmp_path, FileSystem())
    list(scan.frames())
    assert [file.identity for file in scan.verdict.files] == [JournalIdentity(directory_id, start) for start in (1, 2)]
    found = scan.verdict.found(tmp_path)
    assert (found.identity, found.end, found.is_empty) == (JournalIdentity(directory_id, 2), scan.verdict.end, False)


def test_the_position_is_written_at_a_new_file_soon_after_an_append_and_at_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = MemoryRecord()
    monkeypatch.setattr(journal_module, "RECORDING_S", 0.0)

    async def scenario() -> None:
        async with running(tmp_path, record=record, file_bytes=4000) as (journal, _):
            assert record.durable_ends == [journal.end_position], "a new file"
            for number in range(3):
                await journal.append([data_frame(number)])
                await eventually_async(lambda: record.durable_ends[-1] == journal.end_position, "not written down")
            await journal.append([data_frame(3, bytes(5000))])
            assert len(journal.files) == 2
            assert record.durable_ends[-1] >= journal.files[1][0], "before anything is acknowledged in a new file"

    run(scenario())
    assert record.durable_ends[-1] == end_of(tmp_path)
    assert record.durable_ends == sorted(record.durable_ends)


@pytest.mark.parametrize("seed", range(20))
def test_the_position_is_never_ahead_of_what_a_power_cut_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(journal_module, "RECORDING_S", 0.0)
    directory = tmp_path / "journal"
    directory.mkdir()
    filesystem = FaultyFileSystem(directory)
    record = MemoryRecord()

    async def scenario() -> None:
        journal = new_journal(directory, filesystem, file_bytes=3000)
        list(journal.recover())
        await journal.start(tuple, record)
        for number in range(seed):
            await journal.append([data_frame(number, bytes(200))])
        filesystem.power_cut(random.Random(seed))
        journal._failed = StorageError("the machine is off")
        await journal.close()

    run(scenario())
    scan = JournalScan(directory, FileSystem())
    list(scan.frames())
    expected = ExpectedJournal(record.identity.directory_id, record.durable_ends[-1], record.file_id, record.begin)
    assert expected.difference(scan.verdict.found(directory)) is None


def test_after_a_file_has_lost_its_name_nothing_is_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        for lose in (Path.unlink, lambda path: path.rename(path.with_suffix(".away")), _replace):
            directory = tmp_path / str(lose)[:12]
            failures: list[None] = []
            record = MemoryRecord()
            async with running(directory, record=record) as (journal, _):
                journal.on_failure(lambda told=failures: told.append(None))
                location = (await journal.append([data_frame(0)]))[0]
                assert journal.file_loss is None
                (path,) = directory.glob("*.log")
                before = list(record.durable_ends)
                lose(path)
                assert str(path) in (journal.file_loss or "")
                for _ in range(2):
                    with pytest.raises(JournalFileLostError, match=f"{path.name} was removed or replaced"):
                        await journal.append([data_frame(1)])
                assert isinstance(journal.failed, JournalFileLostError)
                assert failures == [None]
                assert journal.read(location).payload == b"payload", "what it holds is read on"
            assert record.durable_ends == before

    run(scenario())


@pytest.mark.parametrize("kept", [0, 500])
def test_after_the_open_file_was_cut_short_nothing_is_acknowledged(tmp_path: Path, kept: int) -> None:
    async def scenario() -> None:
        for size in (10, 8 << 20):  # the second append reserves more bytes
            async with running(tmp_path / str(size), file_bytes=1 << 24) as (journal, _):
                await journal.append([data_frame(0)])
                assert journal.file_loss is None
                (path,) = (tmp_path / str(size)).glob("*.log")
                os.truncate(path, kept)
                assert str(path) in (journal.file_loss or "")
                for _ in range(2):
                    with pytest.raises(JournalFileLostError, match=f"{path.name} was cut short"):
                        await journal.append([data_frame(1, bytes(size))])

    run(scenario())


def _replace(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


def test_an_older_file_that_has_lost_its_name_is_noticed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RECORDING_S", 0.0)

    async def scenario() -> None:
        async with running(tmp_path, file_bytes=3000) as (journal, _):
            for number in range(4):
                await journal.append([data_frame(number, bytes(2000))])
            assert len(journal.files) > 2
            journal._files[0].path.unlink()
            journal.append([data_frame(4)])  # its outcome may come before or after the look
            await eventually_async(lambda: isinstance(journal.failed, JournalFileLostError), "not noticed")

    run(scenario())


def test_a_position_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RECORDING_S", 0.0)

    class FullDisk(MemoryRecord):
        def record(self, durable_end: int, file_id: int, begin: int) -> None:
            super().record(durable_end, file_id, begin)
            if len(self.durable_ends) > 1:
                raise OSError(28, "No space left on device")

    async def scenario() -> None:
        record = FullDisk()
        async with running(tmp_path, record=record) as (journal, _):
            for number in range(3):
                await journal.append([data_frame(number)])
                await eventually_async(lambda: record.durable_ends[-1] == journal.end_position, "not tried")
            assert journal.failed is None

    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr(position_recorder, "_log", log)
    run(scenario())
    assert [call.args for call in log.calls] == [("journal_position_not_recorded",)], "once, and not each second"


def number_of_files(directory: Path) -> int:
    return len(list(directory.glob("*.log")))


def test_a_file_is_removed_after_the_later_begin_is_written(tmp_path: Path) -> None:
    """Otherwise a journal whose oldest file was removed would look like one that has lost it."""

    class Disk(MemoryRecord):
        is_full = False

        def record(self, durable_end: int, file_id: int, begin: int) -> None:
            assert begin >= self.begin
            assert (tmp_path / f"{self.begin:020d}.log").exists(), "the file before is there until now"
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().record(durable_end, file_id, begin)

    async def scenario() -> None:
        record = Disk()
        async with running(tmp_path, record=record, file_bytes=3000) as (journal, _):
            for number in range(4):
                await journal.append([data_frame(number, bytes(2000))])
            starts = [start for start, _ in journal.files]
            assert len(starts) == 4
            record.is_full = True
            journal.release(TOPIC, 0, 2)
            with pytest.raises(StorageError, match="are not removed, because the file beside it cannot be written"):
                await journal.freed()
            assert number_of_files(tmp_path) == 4
            record.is_full = False
            journal.release(TOPIC, 0, 3)
            await journal.freed()
            assert record.begin == starts[3]
            assert number_of_files(tmp_path) == 1

    run(scenario())


def test_nothing_is_acknowledged_before_the_first_position_is_written(tmp_path: Path) -> None:
    """Refuse the append: a lost journal would look like one that was never begun."""

    class BadDisk(MemoryRecord):
        def record(self, durable_end: int, file_id: int, begin: int) -> None:
            raise OSError(28, "No space left on device")

    async def scenario() -> None:
        journal = new_journal(tmp_path)
        list(journal.recover())
        with pytest.raises(StorageError, match=r"cannot write down how far the journal at .* is durable"):
            await journal.start(tuple, BadDisk())
        with pytest.raises(BrokerNotReadyError):
            await journal.append([data_frame(0)])
        journal.abandon()

    run(scenario())


def test_no_append_waits_for_the_disk_of_the_file_beside_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RECORDING_S", 0.0)
    begun, go_on = threading.Event(), threading.Event()

    class HangingDisk(MemoryRecord):
        def record(self, durable_end: int, file_id: int, begin: int) -> None:
            super().record(durable_end, file_id, begin)
            if len(self.durable_ends) > 1:
                begun.set()
                assert go_on.wait(60)

    async def scenario() -> None:
        async with running(tmp_path, record=HangingDisk()) as (journal, _):
            await journal.append([data_frame(0)])
            await eventually_async(begun.is_set, "no position was written")
            await journal.append([data_frame(1)])
            await journal.append([data_frame(2)])
            go_on.set()

    asyncio.run(scenario())  # on real time, which continues while a thread is held


def test_a_journal_that_loses_its_end_differs(tmp_path: Path) -> None:
    """Cut the journal where no later frame attests the lost ones."""
    record = MemoryRecord()

    async def scenario() -> list[int]:
        async with running(tmp_path, record=record) as (journal, _):
            return [sum((await journal.append([data_frame(number)]))[0]) for number in range(3)]

    ends = run(scenario())
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes()[: ends[1]])
    scan = JournalScan(tmp_path, FileSystem())
    assert len(list(scan.frames())) == 2
    expected = ExpectedJournal(record.identity.directory_id, record.durable_ends[-1])
    assert "it ends at position" in (expected.difference(scan.verdict.found(tmp_path)) or "")
