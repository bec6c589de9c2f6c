"""Rule R3: a failed write or sync is final; a full disk is not."""

import asyncio
import errno
import os
import random

import pytest

from logstore.errors import BrokerNotReadyError, StorageError, StorageFullError
from logstore.filesystem import FileSystem
from tests.support.captured_logs import captured_logs
from tests.support.eventually import loop_turns
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.journals import TOPIC, data_frame, new_journal, offsets, recovered_frames, running


async def _outcomes(*futures):
    return [
        type(result).__name__ if isinstance(result, Exception) else "ok"
        for result in await asyncio.gather(*futures, return_exceptions=True)
    ]


@pytest.mark.parametrize("call", ["write_at", "fdatasync"])
def test_after_a_failed_write_or_sync_nothing_is_appended_again(tmp_path, call):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem) as (journal, _):
            good = await journal.append([data_frame(0)])
            await journal.freed()
            filesystem.fail(call)
            in_flight = journal.append([data_frame(1)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            queued = [journal.append([data_frame(i)]) for i in (2, 3)]
            assert await _outcomes(in_flight, *queued) == ["StorageError"] * 3
            assert isinstance(journal.failed, StorageError)
            writes = filesystem.hits["write_at"], filesystem.hits["fdatasync"]
            for _ in range(3):
                with pytest.raises(StorageError, match="restart"):
                    await journal.append([data_frame(1)])
            assert (filesystem.hits["write_at"], filesystem.hits["fdatasync"]) == writes
            assert journal.read(good[0]).payload == b"payload", "reads go on"
            assert journal.end_position == sum(good[0])

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) in ([0], [0, 1])


def test_everything_pending_fails_in_one_step_and_in_order(tmp_path):
    """Notify all appends in one step: otherwise one could take an offset behind one that failed."""
    filesystem = FaultyFileSystem()

    async def scenario():
        events = []

        async with running(tmp_path, filesystem) as (journal, _):
            await journal.append([data_frame(0)])

            async def busy():
                """Take a turn at every step of the loop, as another task."""
                while 3 not in events:
                    events.append("another task")
                    await asyncio.sleep(0)

            filesystem.fill(0)
            filesystem.fail("allocate", errno.ENOSPC, times=1000)
            for i in range(1, 4):

                def told(locations, error, i=i):
                    assert not locations
                    assert isinstance(error, StorageFullError)
                    events.append(i)

                journal.store([data_frame(i, bytes(1 << 20))], told)
            await busy()
            assert events[-3:] == [1, 2, 3]
            assert "another task" in events
            filesystem.heal()
            assert len(await journal.append([data_frame(1)])) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("call", ["allocate", "write_at"])
@pytest.mark.parametrize("written", [0, 1, 100, 300])
def test_a_full_disk_refuses_and_recovers_by_itself(tmp_path, call, written):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem, file_bytes=1 << 30) as (journal, _):
            first = await journal.append([data_frame(0)])
            await journal.freed()
            end = journal.end_position
            # The value is larger than the reserved space.
            large = bytes(5 << 20)
            with captured_logs() as logs:
                for _ in range(3):
                    # The call fails twice: the second try asks for no more than is needed.
                    filesystem.fail(call, errno.ENOSPC, written=written, times=2 if call == "allocate" else 1)
                    with pytest.raises(StorageFullError, match="nothing was stored"):
                        await journal.append([data_frame(1, large), data_frame(2)])
                    await asyncio.sleep(0)
            assert [log["event"] for log in logs] == ["journal_append_failed"], "said once, not with every append"
            assert journal.failed is None
            assert journal.end_position == end
            assert journal.read(first[0]).payload == b"payload"
            locations = await journal.append([data_frame(1, b"other"), data_frame(2)])
            assert locations[0].position == end
            assert journal.read(locations[0]).payload == b"other"

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1, 2]


def test_the_last_space_of_a_disk_is_used(tmp_path):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem, file_bytes=1 << 30) as (journal, _):
            filesystem.fill(100_000)
            stored = 0
            while (await _outcomes(journal.append([data_frame(stored, bytes(300_000))]))) == ["ok"]:
                stored += 1
            # The space reserved ahead was released and used.
            assert stored >= 10
            await journal.append([data_frame(stored, bytes(10))])

    asyncio.run(scenario())


def test_a_cut_that_fails_is_final(tmp_path):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem) as (journal, _):
            filesystem.fail("write_at", errno.ENOSPC, written=200)
            filesystem.fail("fsync")
            with pytest.raises(StorageError, match="cut back"):
                await journal.append([data_frame(0, bytes(1000))])
            assert journal.failed

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == []


@pytest.mark.parametrize(
    ("call", "error"), [("create", errno.ENOSPC), ("create", errno.EMFILE), ("write_at", errno.ENOSPC)]
)
def test_a_file_that_cannot_be_begun_for_want_of_space_is_put_off(tmp_path, call, error):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem, file_bytes=1000) as (journal, _):
            await journal.append([data_frame(0, bytes(700))])
            await journal.freed()
            filesystem.fail(call, error)
            await journal.append([data_frame(1, bytes(700))])
            assert len(journal.files) == 1, "the old file grows on"
            assert len(list(tmp_path.glob("*.log"))) == 1
            await journal.append([data_frame(2, bytes(700))])
            assert len(journal.files) == 2

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1, 2]


def test_files_are_begun_and_removed_without_a_new_descriptor_for_the_directory(tmp_path):
    class OutOfDescriptors(FileSystem):
        def sync_file(self, path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario():
        async with running(tmp_path, OutOfDescriptors(), file_bytes=1000) as (journal, _):
            for offset in range(3):
                await journal.append([data_frame(offset, bytes(700))])
                journal.release(TOPIC, 0, offset)
                await journal.freed()
            assert len(journal.files) == len(list(tmp_path.glob("*.log"))) == 1
            assert journal.failed is None

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [2]


def test_a_start_on_a_full_disk_serves_reads_and_takes_appends_when_there_is_space(tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            await journal.append([data_frame(0)])
        filesystem = FaultyFileSystem()
        filesystem.fail("write_at", errno.ENOSPC, times=2)
        async with running(tmp_path, filesystem) as (journal, recovered):
            assert journal.read(recovered[0].location).payload == b"payload"
            with pytest.raises(StorageFullError, match="no space for a new journal file"):
                await journal.append([data_frame(1)])
            await asyncio.sleep(0)
            await journal.append([data_frame(1)])

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1]


@pytest.mark.parametrize("call", ["create", "fsync", "sync_directory", "truncate"])
def test_a_file_switch_on_a_broken_disk_is_final(tmp_path, call):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem, file_bytes=1000) as (journal, _):
            await journal.append([data_frame(0, bytes(700))])
            await journal.freed()
            filesystem.fail(call)
            with pytest.raises(StorageError):
                await journal.append([data_frame(1, bytes(700))])
            assert journal.failed

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0]


def test_a_file_that_cannot_be_removed_stops_the_journal(tmp_path):
    """Check that the journal stops: if a later file were removed and this one not, the next start would find a gap."""
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem, file_bytes=1000) as (journal, _):
            for i in range(4):
                await journal.append([data_frame(i, bytes(700))])
            filesystem.fail("unlink")
            journal.release(data_frame(0).header.topic_id, 0, 4)
            with pytest.raises(StorageError, match="could not remove journal file"):
                await journal.freed()
            await loop_turns()
            assert journal.failed

    asyncio.run(scenario())
    recovered_frames(tmp_path)


def test_an_unreadable_block_is_an_error_of_that_read(tmp_path):
    filesystem = FaultyFileSystem()

    async def scenario():
        async with running(tmp_path, filesystem) as (journal, _):
            location = (await journal.append([data_frame(0)]))[0]
            filesystem.fail("read_at")
            with pytest.raises(StorageError, match="cannot read"):
                journal.read(location)
            assert journal.read(location).payload == b"payload"
            await journal.append([data_frame(1)])

    asyncio.run(scenario())


def test_a_bug_in_giving_snapshots_fails_appends_and_hangs_nobody(tmp_path):
    calls = []

    def snapshots():
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("bug")
        return []

    async def scenario():
        async with running(tmp_path, file_bytes=1000, snapshots=snapshots) as (journal, _):
            await journal.append([data_frame(0, bytes(700))])
            with pytest.raises(StorageError, match="bug"):
                await journal.append([data_frame(1, bytes(700))])
            assert journal.failed

    asyncio.run(scenario())


def test_recovery_from_a_disk_that_cannot_be_read_is_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            await journal.append([data_frame(0)])

    asyncio.run(scenario())
    for call in ("open_read", "read_at"):
        filesystem = FaultyFileSystem()
        filesystem.fail(call)
        journal = new_journal(tmp_path, filesystem)
        with pytest.raises(StorageError):
            list(journal.recover())

        async def closed(journal=journal):
            with pytest.raises(BrokerNotReadyError):
                await journal.append([data_frame(1)])
            await journal.close()

        asyncio.run(closed())
    assert offsets(recovered_frames(tmp_path)) == [0]


def test_records_read_by_a_restart_after_a_failed_sync_survive_a_power_cut(tmp_path):
    """Check that the pages are written again: the kernel counts those of a failed sync as clean and only reads them."""
    directory = tmp_path / "0"
    filesystem = FaultyFileSystem(directory)

    async def fails():
        async with running(directory, filesystem) as (journal, _):
            await journal.append([data_frame(0)])
            await journal.freed()
            filesystem.fail("fdatasync")
            with pytest.raises(StorageError):
                await journal.append([data_frame(1, bytes(2000)), data_frame(2, b"last")])

    async def restarts():
        filesystem.restart()
        async with running(directory, filesystem) as (_, recovered):
            assert offsets(recovered) == [0, 1, 2]

    asyncio.run(fails())
    asyncio.run(restarts())
    filesystem.power_cut(random.Random(1))
    assert offsets(recovered_frames(directory)) == [0, 1, 2]
