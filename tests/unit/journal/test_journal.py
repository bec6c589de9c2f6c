import asyncio
import errno
import threading
from uuid import UUID

import pyarrow as pa
import pytest

from logstore.errors import BrokerNotReadyError, CorruptionError, DataDirectoryError, StorageError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import HEADER_BYTES, FrameFlags, FrameLocation, FrameType
from logstore.journal.journal import Journal
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.limits import JOURNAL_GROUP_BYTES_MAX
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
from tests.support.journals import (
    TOPIC,
    MemoryRecord,
    control_frame,
    data_frame,
    kafka_frame,
    new_journal,
    offsets,
    recovered_frames,
    relocate_oldest,
    running,
    snapshot_frame,
    transactional_frame,
    truncate_frame,
)
from tests.support.manual_clock import ManualClock


class CountingFileSystem(FileSystem):
    def __init__(self):
        super().__init__()
        self.syncs = 0

    def fdatasync(self, fd):
        self.syncs += 1
        super().fdatasync(fd)


def test_appended_frames_are_read_back_and_recovered(tmp_path):
    payloads = [b"", b"x", bytes(range(256)) * 1000, pa.py_buffer(b"arrow"), memoryview(b"view")]
    frames = [data_frame(i, payload, partition=i % 2) for i, payload in enumerate(payloads)]

    async def scenario():
        async with running(tmp_path) as (journal, recovered):
            assert recovered == []
            locations = await journal.append(frames)
            assert [location.length for location in locations] == [HEADER_BYTES + len(p) for p in payloads]
            for frame, location in zip(frames, locations, strict=True):
                header, payload = journal.read(location)
                assert (header, bytes(payload)) == (frame.header, bytes(frame.payload))
            assert journal.read_many(locations[::-1]) == [journal.read(location) for location in locations[::-1]]
            return locations

    locations = asyncio.run(scenario())
    recovered = recovered_frames(tmp_path)
    assert [(f.header, f.location) for f in recovered] == [
        (f.header, at) for f, at in zip(frames, locations, strict=True)
    ]
    assert all(f.payload is None for f in recovered)


def test_appends_made_together_share_one_fdatasync_and_keep_their_order(tmp_path):
    filesystem = CountingFileSystem()

    async def scenario():
        done = []
        async with running(tmp_path, filesystem) as (journal, _):
            futures = [journal.append([data_frame(i), data_frame(i, partition=1)]) for i in range(100)]
            for i, future in enumerate(futures):
                future.add_done_callback(lambda _, i=i: done.append(i))
            locations = [location for future in futures for location in await future]
            assert locations == sorted(locations)
            assert journal.end_position == sum(locations[-1])
        return done

    assert asyncio.run(scenario()) == list(range(100))
    assert filesystem.syncs == 1
    assert offsets(recovered_frames(tmp_path)) == list(range(100))


def test_the_end_of_a_group_is_reported_after_all_its_callbacks(tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            assert journal.group_reported() is None, "nothing is on its way"
            appends = [journal.append([data_frame(i)]) for i in range(3)]
            reported = journal.group_reported()
            assert reported is journal.group_reported()
            await reported
            assert all(append.done() for append in appends)
            assert journal.group_reported() is None

    asyncio.run(scenario())


def test_the_end_of_a_group_that_failed_is_reported(tmp_path):
    class Broken(FileSystem):
        def fdatasync(self, fd):
            raise OSError(errno.EIO, "broken")

    async def scenario():
        async with running(tmp_path, Broken()) as (journal, _):
            append = journal.append([data_frame(0)])
            await journal.group_reported()
            assert isinstance(append.exception(), StorageError)

    asyncio.run(scenario())


def test_a_group_is_bounded_and_an_append_larger_than_it_goes_alone(tmp_path):
    filesystem = CountingFileSystem()
    big = bytes(JOURNAL_GROUP_BYTES_MAX // 2)

    async def scenario():
        async with running(tmp_path, filesystem, file_bytes=1 << 30) as (journal, _):
            await asyncio.gather(*(journal.append([data_frame(i, big)]) for i in range(3)))
            assert filesystem.syncs == 3
            await journal.append([data_frame(3 + i, big) for i in range(3)])
            assert filesystem.syncs == 4

    asyncio.run(scenario())


def test_an_append_cannot_be_cancelled(tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            future = journal.append([data_frame(0)])
            assert not future.cancel()
            assert len(await future) == 1

            async def wait():
                await journal.append([data_frame(1)])

            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await journal.append([data_frame(2)])

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1, 2]


def test_appends_are_refused_before_start_and_after_close(tmp_path):
    async def scenario():
        journal = new_journal(tmp_path)
        with pytest.raises(RuntimeError, match="recover"):
            await journal.start(tuple, MemoryRecord())
        list(journal.recover())
        with pytest.raises(BrokerNotReadyError):
            await journal.append([data_frame(0)])
        await journal.start(tuple, MemoryRecord())
        last = journal.append([data_frame(0)])
        await journal.close()
        assert last.done()
        with pytest.raises(BrokerNotReadyError):
            await journal.append([data_frame(1)])
        await journal.close()

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0]


def test_each_file_begins_with_the_snapshots_of_that_moment(tmp_path):
    sealed = {0: 0, 1: 0}

    def snapshots():
        return [snapshot_frame(sealed[partition], partition=partition) for partition in sealed]

    async def scenario():
        async with running(tmp_path, file_bytes=2000, snapshots=snapshots) as (journal, _):
            for i in range(10):
                await journal.append([data_frame(i, bytes(600))])
                sealed[0] = i + 1
            assert all(size <= 2000 for _, size in journal.files)
            assert [start + size for start, size in journal.files[:-1]] == [start for start, _ in journal.files[1:]]
            assert journal.retained_bytes == sum(size for _, size in journal.files)

    asyncio.run(scenario())
    frames = recovered_frames(tmp_path)
    assert offsets(frames) == list(range(10))
    states = [PartitionSnapshot.decode(f.payload) for f in frames if f.header.type is FrameType.SNAPSHOT]
    per_file = [state.sealed_offset for state in states[::2]]
    assert len(per_file) > 3
    assert per_file == sorted(per_file)
    assert per_file[-1] > 0
    # A snapshot describes the frames before it, and none after it.
    seen = 0
    for frame in frames:
        if frame.header.type is FrameType.DATA:
            seen = frame.header.end_offset
        elif frame.header.partition == 0:
            assert PartitionSnapshot.decode(frame.payload).sealed_offset == seen


def test_an_append_larger_than_a_file_is_stored_in_one(tmp_path):
    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            await journal.append([data_frame(0, bytes(5000))])
            await journal.append([data_frame(1, bytes(5000))])
            assert len(journal.files) == 2

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1]


async def _fill(
    journal: Journal, first: int, count: int, partition: int = 0, topic: UUID = TOPIC
) -> list[FrameLocation]:
    return [
        (await journal.append([data_frame(i, bytes(700), partition=partition, topic=topic)]))[0]
        for i in range(first, first + count)
    ]


async def _settle(journal: Journal) -> None:
    """Wait until the freed files are removed."""
    await journal.freed()


def test_files_go_oldest_first_when_all_in_them_is_sealed(tmp_path):
    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            locations = await _fill(journal, 0, 3)
            locations += await _fill(journal, 0, 1, partition=1)
            locations += await _fill(journal, 3, 2)
            before = journal.files
            assert len(before) == 6

            journal.release(TOPIC, 0, 2)
            assert journal.files == before[2:]
            journal.release(TOPIC, 0, 5)
            assert journal.files == before[3:], "partition 1 keeps its file, and all behind it"
            journal.release(TOPIC, 1, 0)
            assert journal.files == before[3:]
            journal.release(TOPIC, 1, 1)
            assert journal.files == before[-1:], "the file that is written stays"
            await _settle(journal)
            assert [path.stem for path in tmp_path.iterdir()] == [f"{before[-1][0]:020d}"]

            for location in locations[:-1]:
                with pytest.raises(JournalRangeFreedError, match="look it up again"):
                    journal.read(location)
            assert journal.read(locations[-1]).header.base_offset == 4
            assert journal.retained_bytes == before[-1][1]

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [4]


def test_a_restart_frees_the_files_of_sealed_records(tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            await _fill(journal, 0, 5)
        journal = new_journal(tmp_path)
        assert offsets(list(journal.recover())) == [0, 1, 2, 3, 4]
        journal.release(TOPIC, 0, 5)
        assert len(journal.files) == 1, "not before a new file holds the snapshots"
        await journal.start(lambda: [snapshot_frame(5)], MemoryRecord())
        assert len(journal.files) == 1
        await journal.close()

    asyncio.run(scenario())
    frames = recovered_frames(tmp_path)
    assert offsets(frames) == []
    assert PartitionSnapshot.decode(frames[0].payload).sealed_offset == 5


def test_a_deleted_topic_holds_no_file_not_even_by_frames_on_their_way(tmp_path):
    other = UUID(int=1)

    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            await _fill(journal, 0, 2, topic=other)
            on_its_way = journal.append([data_frame(2, bytes(700), topic=other)])
            await asyncio.sleep(0)
            journal.forget(other)
            await on_its_way
            await _fill(journal, 0, 1)
            assert len(journal.files) == 1
            journal.release(other, 0, 3)

    asyncio.run(scenario())


def test_relocation_frees_a_file_that_a_slow_partition_keeps(tmp_path):
    async def scenario():
        async with running(tmp_path, file_bytes=4000) as (journal, _):
            slow = [(await journal.append([data_frame(i, b"slow%d" % i, partition=7)]))[0] for i in range(3)]
            await _fill(journal, 0, 20)
            journal.release(TOPIC, 7, 1)
            journal.release(TOPIC, 0, 20)
            assert journal.files[0][0] == 0

            moved = await relocate_oldest(journal)
            assert [header.base_offset for header, _ in moved] == [1, 2]
            assert all(header.flags == FrameFlags.RELOCATED for header, _ in moved)
            assert len(journal.files) == 1
            for header, location in moved:
                frame = journal.read(location)
                assert (frame.header, bytes(frame.payload)) == (header, b"slow%d" % header.base_offset)
            with pytest.raises(JournalRangeFreedError):
                journal.read(slow[1])
            assert await relocate_oldest(journal) == [], "the file that is written is not relocated"
            await _settle(journal)

    asyncio.run(scenario())
    frames = recovered_frames(tmp_path)
    assert offsets(frames, 7) == [1, 2]
    slow = next(f.header for f in frames if f.header.partition == 7)
    assert slow == data_frame(1, b"slow1", partition=7).header._replace(flags=FrameFlags.RELOCATED)


def test_reading_while_files_are_freed_gives_the_frame_or_says_that_it_is_gone(tmp_path):
    outcomes = {"read": 0, "freed": 0}
    wrong = []
    stop = threading.Event()
    locations: list[tuple[int, FrameLocation]] = []

    def reader(journal):
        while not stop.is_set():
            for offset, location in locations[-5:]:
                try:
                    frame = journal.read(location)
                    if frame.header.base_offset != offset:
                        wrong.append(frame)
                    outcomes["read"] += 1
                except JournalRangeFreedError:
                    outcomes["freed"] += 1
                except BaseException as e:  # noqa: BLE001
                    wrong.append(e)

    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            threads = [threading.Thread(target=reader, args=(journal,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            try:
                for i in range(50):
                    location = (await journal.append([data_frame(i, bytes(700))]))[0]
                    locations.append((i, location))
                    journal.release(TOPIC, 0, i)
            finally:
                stop.set()
                for thread in threads:
                    await asyncio.to_thread(thread.join)

    asyncio.run(scenario())
    assert wrong == []
    assert outcomes["read"] > 0
    assert outcomes["freed"] > 0


def test_a_frame_damaged_after_it_was_written_is_not_served(tmp_path):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            location = (await journal.append([data_frame(0, b"p" * 100)]))[0]
            path = next(tmp_path.iterdir())
            for at in (0, HEADER_BYTES, HEADER_BYTES + 99):
                good = path.read_bytes()
                damaged = bytearray(good)
                damaged[location.position + at] ^= 1
                path.write_bytes(damaged)
                with pytest.raises(CorruptionError, match=str(location.position)):
                    journal.read(location)
                path.write_bytes(good)
            with pytest.raises(CorruptionError):
                journal.read(FrameLocation(location.position, location.length + 1))
            assert journal.read(location).payload == b"p" * 100

    asyncio.run(scenario())


def test_a_journal_continues_where_it_ended(tmp_path):
    async def scenario():
        ends = []
        for i in range(4):
            async with running(tmp_path) as (journal, recovered):
                assert offsets(recovered) == list(range(i))
                ends.append(journal.end_position)
                location = (await journal.append([data_frame(i)]))[0]
                assert location.position == ends[-1]
                for frame in recovered:
                    assert journal.read(frame.location).header == frame.header
        return ends

    ends = asyncio.run(scenario())
    assert ends == sorted(set(ends))


def test_a_directory_that_cannot_be_made_is_said_so(tmp_path):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "0", filesystem=FileSystem(), clock=ManualClock())
    with pytest.raises(StorageError, match="cannot make the journal directory"):
        list(journal.recover())
    asyncio.run(journal.close())


def test_payloads_of_snapshots_and_controls_are_recovered_with_them(tmp_path):
    control = control_frame(1)

    async def scenario():
        async with running(tmp_path, snapshots=lambda: [snapshot_frame()]) as (journal, _):
            (location,) = await journal.append([control])
            assert journal.read(location) == control
            await journal.append([data_frame(0), truncate_frame(1)])

    asyncio.run(scenario())
    found = [(f.header.type, f.payload) for f in recovered_frames(tmp_path)]
    assert found == [
        (FrameType.SNAPSHOT, snapshot_frame().payload),
        (FrameType.CONTROL, control.payload),
        (FrameType.DATA, None),
        (FrameType.TRUNCATE, None),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 3},
        {"base_offset": -1},
        {"base_offset": 2**63 - 1},
        {"identity": NO_IDENTITY},
        {"identity": BatchIdentity(5, -5, -1)},
        {"identity": BatchIdentity(2**63, 2, -1)},
    ],
    ids=str,
)
def test_a_marker_that_no_snapshot_could_hold_is_refused_before_one_is_written(tmp_path, change):
    """Refuse the marker: a start that took it would begin a file that no later start can read."""
    control = control_frame(1)
    control = control._replace(header=control.header._replace(**change))

    async def scenario():
        async with running(tmp_path) as (journal, _):
            await journal.append([data_frame(0), control])

    asyncio.run(scenario())
    with pytest.raises(CorruptionError, match=r"journal frame at position \d+ is no control record"):
        recovered_frames(tmp_path)


@pytest.mark.parametrize(
    "frame",
    [
        data_frame(-1),
        data_frame(2**63 - 3, count=3),
        data_frame(1, count=-1),
        truncate_frame(-1),
        truncate_frame(1)._replace(header=truncate_frame(1).header._replace(record_count=1)),
    ],
    ids=["below 0", "beyond the largest", "negative count", "truncation below 0", "truncation with records"],
)
def test_offsets_that_cannot_be_are_refused(tmp_path, frame):
    async def scenario():
        async with running(tmp_path) as (journal, _):
            await journal.append([data_frame(0), frame])

    asyncio.run(scenario())
    with pytest.raises(CorruptionError, match=r"journal frame at position \d+ .* no release wrote that"):
        recovered_frames(tmp_path)


def test_a_control_frame_keeps_its_file_until_it_is_sealed_and_moves_with_its_payload(tmp_path):
    control = control_frame(1)

    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            await journal.append([data_frame(0), control, truncate_frame(2)])
            await journal.append([data_frame(2, bytes(900))])
            assert len(journal.files) == 2
            journal.release(TOPIC, 0, 1)
            ((header, location),) = await relocate_oldest(journal)
            assert header == control.header._replace(flags=FrameFlags.RELOCATED)
            assert journal.read(location) == control._replace(header=header)
            await asyncio.sleep(0)
            assert journal.files[0][0] == 531, "the first file is gone"

    asyncio.run(scenario())


def test_a_record_batch_of_a_kafka_client_is_read_and_relocated_as_it_came(tmp_path):
    frame = kafka_frame(1)

    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            places = await journal.append([data_frame(0), frame])
            assert journal.read_many(places) == [data_frame(0), frame]
            await journal.append([data_frame(2, bytes(900))])
            journal.release(TOPIC, 0, 1)
            ((header, location),) = await relocate_oldest(journal)
            assert header == frame.header._replace(flags=FrameFlags.RELOCATED)
            assert journal.read(location) == frame._replace(header=header)

    asyncio.run(scenario())


def test_a_frame_that_a_start_refuses_is_refused_to_readers(tmp_path):
    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            good, bad = await journal.append([data_frame(0), transactional_frame(1)])
            await journal.append([data_frame(2, bytes(900))])
            with pytest.raises(DataDirectoryError, match=f"position {bad.position} .* TRANSACTIONAL "):
                journal.read_many([good, bad])
            with pytest.raises(DataDirectoryError, match=f"position {bad.position} .* TRANSACTIONAL "):
                await relocate_oldest(journal)
            assert len(journal.files) == 2

    asyncio.run(scenario())
