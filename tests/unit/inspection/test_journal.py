import asyncio

import pytest

from logstore.crc32c import crc32c
from logstore.errors import CorruptionError, DataDirectoryError, StorageError
from logstore.inspection.journal import DumpedControl, DumpedSnapshot, dump, repair, verify
from logstore.journal.frame import HEADER_BYTES, FrameFlags
from logstore.journal.partition_snapshot import PartitionSnapshot
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch
from logstore.records.transactions import ControlType, Marker, OpenTransaction
from tests.support.journals import (
    TOPIC,
    control_frame,
    data_frame,
    kafka_frame,
    offsets,
    recovered_frames,
    relocate_oldest,
    running,
    snapshot_frame,
    transactional_frame,
    truncate_frame,
)


@pytest.fixture
def journal_directory(tmp_path):
    """Write three files: each has two offsets of partition 0 (0 to 5 in all), and one of partition 1."""

    async def scenario():
        async with running(tmp_path, file_bytes=2500, snapshots=lambda: [snapshot_frame(4)]) as (journal, _):
            for i in range(3):
                await journal.append([data_frame(2 * i, bytes(700)), data_frame(2 * i + 1, bytes(700))])
                await journal.append([data_frame(i, b"other", partition=1)])
            assert len(journal.files) == 3

    asyncio.run(scenario())
    return tmp_path


def test_dump_prints_every_frame_and_changes_nothing(journal_directory):
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
            await relocate_oldest(journal)

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
    assert lost == {(0, 3, 6, 3), (1, 1, 3, 2)}  # including the damaged frame, whose header is good
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


def test_dump_shows_senders_and_remembered_batches(tmp_path):
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


def write_journal(directory, *frames, snapshot=None):
    async def scenario():
        async with running(directory, snapshots=lambda: [snapshot] if snapshot else []) as (journal, _):
            await journal.append(frames)

    asyncio.run(scenario())


def test_truncations_and_controls_are_dumped_by_name(tmp_path):
    write_journal(tmp_path, data_frame(0), control_frame(1, kind=ControlType.ABORT), truncate_frame(1, leader_epoch=4))
    data, control, truncation = dump(tmp_path)
    assert (data.type, data.control, data.honoured) == ("DATA", None, True)
    assert (control.type, control.control, control.honoured) == ("CONTROL", DumpedControl("ABORT", 7), True)
    assert (control.base_offset, control.record_count) == (1, 1)
    assert (control.identity.owner, control.identity.epoch) == (5, 2)
    assert (truncation.type, truncation.base_offset, truncation.leader_epoch) == ("TRUNCATE", 1, 4)
    assert (truncation.record_count, truncation.honoured) == (0, True)
    assert verify(tmp_path).damage is None
    assert repair(tmp_path) is None


def test_transactions_of_a_snapshot_are_dumped(tmp_path):
    opened, ended = (OpenTransaction(5, 2, 7, 1_000),), (Marker(6, 1, 9, 8, 1_001),)
    snapshot = PartitionSnapshot(4, ((0, 0),), 10, open_transactions=opened, markers=ended)
    write_journal(tmp_path, data_frame(10), snapshot=snapshot_frame(4)._replace(payload=snapshot.encode()))
    found = next(dump(tmp_path)).snapshot
    assert found is not None
    assert (found.open_transactions, found.markers) == (opened, ended)


def test_a_record_batch_of_a_kafka_client_is_dumped_and_good(tmp_path):
    write_journal(tmp_path, data_frame(0), kafka_frame(1))
    row = list(dump(tmp_path))[-1]
    assert (row.type, row.base_offset, row.record_count, row.honoured) == ("KAFKA_BATCH", 1, 1, True)
    assert verify(tmp_path).damage is None
    assert repair(tmp_path) is None
    assert [frame.header.type.name for frame in recovered_frames(tmp_path)] == ["DATA", "KAFKA_BATCH"]


def test_a_repair_counts_the_records_of_record_batches(tmp_path):
    damaged = kafka_frame(1)
    damaged = damaged._replace(header=damaged.header._replace(record_count=3))
    write_journal(tmp_path, data_frame(0), damaged, kafka_frame(4))
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[list(dump(tmp_path))[1].position + HEADER_BYTES] ^= 1
    path.write_bytes(content)
    report = repair(tmp_path)
    assert report is not None
    assert [(lost.first_offset, lost.end_offset, lost.records) for lost in report.lost] == [(1, 5, 4)]


def test_a_frame_that_a_start_refuses_is_dumped_and_neither_passed_over_nor_repaired(tmp_path):
    frame, name = transactional_frame(1), r"has the flag TRANSACTIONAL \(4\)"
    write_journal(tmp_path, data_frame(0), frame, data_frame(2))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rows = list(dump(tmp_path))
    assert [(row.type, row.transactional, row.honoured) for row in rows] == [
        ("DATA", False, True),
        (frame.header.type.name, bool(frame.header.flags), False),
        ("DATA", False, True),
    ]
    message = f"position {rows[1].position} {name}, which this release does not serve"
    damage = verify(tmp_path).damage
    assert isinstance(damage, DataDirectoryError)
    for refuse in (repair, recovered_frames):
        with pytest.raises(DataDirectoryError, match=message):
            refuse(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_frame_that_a_start_refuses_is_not_cut_behind_damage(tmp_path):
    write_journal(tmp_path, data_frame(0), data_frame(1), transactional_frame(2))
    (path,) = tmp_path.iterdir()
    second = list(dump(tmp_path))[1]
    content = bytearray(path.read_bytes())
    content[second.position + HEADER_BYTES] ^= 1
    path.write_bytes(content)
    for refuse in (repair, recovered_frames):
        with pytest.raises(DataDirectoryError, match="TRANSACTIONAL"):
            refuse(tmp_path)
    assert path.read_bytes() == bytes(content)


def test_a_control_record_of_another_kind_is_refused_by_its_position(tmp_path):
    leader_change = control_frame(1)
    leader_change = leader_change._replace(
        payload=leader_change.payload.replace(b"\x00\x00\x00\x01", b"\x00\x00\x00\x02")
    )
    write_journal(tmp_path, data_frame(0), leader_change)
    refused = r"position 263 is a control record of type 2 .* start the release that wrote it"
    for look in (repair, recovered_frames, lambda directory: list(dump(directory))):
        with pytest.raises(DataDirectoryError, match=refused):
            look(tmp_path)
    assert isinstance(verify(tmp_path).damage, DataDirectoryError)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (8, 5, "journal file at position 0 has format version 5"),
        (HEADER_BYTES + 8, 5, "position 128 has format version 5"),
        (HEADER_BYTES + 9, 7, r"position 128 \(format version 4\) has type 7, flags 0x0"),
        (HEADER_BYTES + 10, 8, r"position 128 \(format version 4\) has type 1, flags 0x8"),
    ],
)
def test_a_frame_type_without_a_name_is_refused_by_its_number(tmp_path, at, value, message):
    write_journal(tmp_path, data_frame(0), data_frame(1))
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[at] = value
    begin = at // HEADER_BYTES * HEADER_BYTES
    content[begin + 4 : begin + 8] = crc32c(bytes(content[begin + 8 : begin + HEADER_BYTES])).to_bytes(4, "little")
    path.write_bytes(content)
    for look in (repair, recovered_frames, lambda directory: list(dump(directory))):
        with pytest.raises(DataDirectoryError, match=message):
            look(tmp_path)
    assert isinstance(verify(tmp_path).damage, DataDirectoryError)
    assert path.read_bytes() == content
