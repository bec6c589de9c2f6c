import asyncio

import pytest

from logstore.errors import CorruptionError, StorageError
from logstore.journal.frame import HEADER_BYTES, FrameFlags
from logstore.journal.inspect import DumpedSnapshot, dump, repair, verify
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch
from tests.support.journals import TOPIC, data_frame, offsets, recovered_frames, running, snapshot_frame


@pytest.fixture
def journal_directory(tmp_path):
    """Three files; partition 0 has offsets 0 to 5, two in each, and partition 1 one record in each."""

    async def scenario():
        async with running(tmp_path, file_bytes=2500, snapshots=lambda: [snapshot_frame(4)]) as (journal, _):
            for i in range(3):
                await journal.append([data_frame(2 * i, bytes(700)), data_frame(2 * i + 1, bytes(700))])
                await journal.append([data_frame(i, b"other", partition=1)])
            assert len(journal.files) == 3

    asyncio.run(scenario())
    return tmp_path


def test_dump_tells_every_frame_and_changes_nothing(journal_directory):
    before = {path.name: path.read_bytes() for path in journal_directory.iterdir()}
    rows = list(dump(journal_directory))
    assert [row.type for row in rows] == ["SNAPSHOT", "DATA", "DATA", "DATA"] * 3
    assert sorted({row.file for row in rows}) == sorted(before)
    assert rows[0].snapshot == DumpedSnapshot(4, ((0, 0),), 0, (), (), -1)
    row = rows[-1]
    assert (row.topic_id, row.partition, row.base_offset, row.record_count) == (TOPIC, 1, 2, 1)
    assert (row.length, row.relocated, row.snapshot) == (HEADER_BYTES + 5, False, None)
    assert row.append_time_ms == 1_000
    assert {path.name: path.read_bytes() for path in journal_directory.iterdir()} == before


def test_dump_shows_relocated_frames(tmp_path):
    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            frame = data_frame(0)
            await journal.append([frame._replace(header=frame.header._replace(flags=FrameFlags.LOG_APPEND_TIME))])
            await journal.append([data_frame(0, bytes(900), partition=1)])
            await journal.relocate_oldest()

    asyncio.run(scenario())
    assert [(row.relocated, row.log_append_time) for row in dump(tmp_path)][-1] == (True, True)


def test_verify_counts_and_finds_damage(journal_directory):
    report = verify(journal_directory)
    assert (report.files, report.frames, report.tail_bytes, report.damage) == (3, 12, 0, None)
    assert report.end_position == sum((row.position, row.length)[0] for row in list(dump(journal_directory))[-1:]) + 133

    path = sorted(journal_directory.iterdir())[1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    report = verify(journal_directory)
    assert report.frames == 7
    assert isinstance(report.damage, CorruptionError)
    with pytest.raises(CorruptionError):
        list(dump(journal_directory))


def test_repair_ends_the_journal_at_the_damage_and_keeps_every_byte(journal_directory):
    assert repair(journal_directory) is None
    paths = sorted(journal_directory.iterdir())
    row = next(row for row in dump(journal_directory) if row.base_offset == 3 and row.partition == 0)
    content = bytearray(paths[1].read_bytes())
    content[row.position - int(paths[1].stem) + HEADER_BYTES] ^= 1
    paths[1].write_bytes(content)
    before = {path.name: path.read_bytes() for path in paths}

    report = repair(journal_directory)

    assert report.position == row.position
    assert {copy.name: copy.read_bytes() for copy in report.copies} == {
        f"{paths[1].name}.corrupt": before[paths[1].name],
        f"{paths[2].name}.corrupt": before[paths[2].name],
    }
    lost = {(r.partition, r.first_offset, r.end_offset, r.records) for r in report.lost}
    assert lost == {(0, 4, 6, 2), (1, 1, 3, 2)}
    assert verify(journal_directory).damage is None
    assert repair(journal_directory) is None
    frames = recovered_frames(journal_directory)
    assert (offsets(frames), offsets(frames, 1)) == ([0, 1, 2], [0])


def test_repair_of_a_damaged_header_and_of_a_missing_file(journal_directory):
    paths = sorted(journal_directory.iterdir())
    paths[2].write_bytes(b"X" + paths[2].read_bytes()[1:])
    report = repair(journal_directory)
    assert [copy.name for copy in report.copies] == [f"{paths[2].name}.corrupt"]
    assert offsets(recovered_frames(journal_directory)) == [0, 1, 2, 3]

    report.copies[0].rename(paths[2])
    paths[2].write_bytes(b"L" + paths[2].read_bytes()[1:])
    paths[1].unlink()
    report = repair(journal_directory)
    assert [copy.name for copy in report.copies] == [f"{paths[2].name}.corrupt"]
    assert paths[0].exists()
    assert offsets(recovered_frames(journal_directory)) == [0, 1]


def test_a_directory_that_is_not_there_is_said_so(tmp_path):
    for look in (verify, repair, lambda directory: list(dump(directory))):
        with pytest.raises(StorageError, match="no journal directory"):
            look(tmp_path / "none")


def test_dump_shows_who_sent_what_and_what_is_remembered(tmp_path):
    producers = [RememberedBatch(5, 2, 7, 3, 10, 1000), RememberedBatch(6, 0, 0, 1, 13, 1001)]
    keys = [RememberedBatch(2**64 - 1, -2, -(2**63), 1, 14, 1002)]
    packed = [b"".join(batch.pack() for batch in batches) for batches in (producers, keys)]
    sender, keyed = BatchIdentity(5, 2, 10), BatchIdentity(2**64 - 1, -(2**15), -(2**63))

    async def scenario():
        frame = snapshot_frame(4)
        frame = frame._replace(payload=PartitionSnapshot(4, ((0, 0),), 15, *packed, 5).encode())
        async with running(tmp_path, snapshots=lambda: [frame]) as (journal, _):
            plain = data_frame(15)
            frames = [plain._replace(header=plain.header._replace(identity=of)) for of in (sender, keyed, NO_IDENTITY)]
            await journal.append(frames)

    asyncio.run(scenario())
    snapshot, *frames = dump(tmp_path)
    assert snapshot.snapshot == DumpedSnapshot(4, ((0, 0),), 15, tuple(producers), tuple(keys), 5)
    assert [frame.identity for frame in frames] == [sender, keyed, None]
