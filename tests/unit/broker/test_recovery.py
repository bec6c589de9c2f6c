"""A start uses segments: if the journal has nothing of a partition, the newest segment decides."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.broker.context import INTERNAL
from logstore.broker.topics.recovery import end_at_holes, recover_partitions
from logstore.errors import CorruptionError, StorageError
from logstore.log.journal_tail import collect_tails
from logstore.log.newest_footers import _footer_of
from logstore.log.partition_log import PartitionLog
from logstore.log.relocation import relocate_oldest
from tests.support.data_directory import lose_journal
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.journals import TOPIC, MemoryRecord, data_frame, new_journal
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, read_all, records, running_broker
from tests.support.topics import create_topic, roll
from tests.support.virtual_time import run

NOW_MS = 1_700_000_000_000
FAR_MS = 4_102_444_800_000


def test_a_missing_segment_keeps_no_other_topic_from_being_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            for name in ("whole", "broken"):
                topic = await broker.topics.changes.create(INTERNAL, name)
                assert topic
                await produce(broker, topic, [b"a", b"b"])
        lose_journal(tmp_path)
        (segment,) = (tmp_path / "topics" / "broken").glob("*/*.parquet")
        segment.unlink()
        async with running_broker(tmp_path) as broker:
            assert await read_all(broker, broker.topics.served.topic(INTERNAL, "whole")) == [(0, b"a"), (1, b"b")]
            with pytest.raises(CorruptionError, match=segment.name):
                await read_all(broker, broker.topics.served.topic(INTERNAL, "broken"))
            assert await produce(broker, broker.topics.served.topic(INTERNAL, "broken"), [b"c"]) == 2

    run(scenario())


@pytest.mark.parametrize("journal_lost", [True, False])
def test_append_times_continue_from_appends_and_never_from_the_clocks_of_producers(
    tmp_path: Path, journal_lost: bool
) -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            await broker.produce.records.produce(INTERNAL, topic, records([b"early"], timestamp=FAR_MS), partition=0)
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"message.timestamp.type": "LogAppendTime"})
        if journal_lost:
            lose_journal(tmp_path)
        clock.step_wall(-3_600_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            await produce(broker, topic, [b"late"])
            fetched = await broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=1 << 20, min_bytes=1, max_wait_ms=0)
            if fetched.records.num_rows == 1:
                fetched = await broker.fetch.partition(
                    INTERNAL, topic, 0, 1, max_bytes=1 << 20, min_bytes=1, max_wait_ms=0
                )
            assert fetched.records["timestamp"].cast("int64").to_pylist()[-1] == NOW_MS

    run(scenario())


def test_append_times_continue_from_the_journals_snapshots_alone(tmp_path: Path) -> None:
    """Seal all records; a start and a stop then leave a journal without a frame of records."""

    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(
                INTERNAL, "t", configs={"message.timestamp.type": "LogAppendTime"}
            )
            await produce(broker, topic, [b"before"])
            await broker.topics.tables.roll(INTERNAL, topic)
        async with running_broker(tmp_path, clock=clock):
            pass
        clock.step_wall(-3_600_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            await produce(broker, topic, [b"after"])
            fetched = await broker.fetch.partition(INTERNAL, topic, 0, 1, max_bytes=1 << 20, min_bytes=1, max_wait_ms=0)
            assert fetched.records["timestamp"].cast("int64").to_pylist() == [NOW_MS]

    run(scenario())


def test_a_footer_that_cannot_be_read_now_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """Fail to read a footer: a store that took it for lost would forget its producers, and store repetitions again."""
    disk = FaultyFileSystem()
    table = create_topic(tmp_path, filesystem=disk)
    segment = roll(table, 0, 0, 10).segments[0]
    footer = _footer_of(table.files, segment.path, 0)
    assert footer is not None
    for call in ("segment.stat", "segment.open_read", "segment.read_into"):
        disk.fail(call)
        with pytest.raises(StorageError, match="Input/output error"):
            _footer_of(table.files, segment.path, 0)
    assert _footer_of(table.files, segment.path, 0) == footer
    disk.unlink(Path(table.files.where(segment.path)))
    assert _footer_of(table.files, segment.path, 0) is None


class Replica:
    """A follower's log over a real journal with small files. Its table is empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def start(self, *, may_lack_frames: bool = False, has_copies: bool = True) -> None:
        self.log = PartitionLog("t", TOPIC, 0, clock=ManualClock(), producer_id_expiration_ms=10**12)
        snapshot = SimpleNamespace(partitions=[SimpleNamespace(sealed=0)])
        topic: Any = SimpleNamespace(
            name="t", topic_id=TOPIC, partitions=[self.log], snapshot=snapshot, table=SimpleNamespace(files=None)
        )
        self.journal = new_journal(self.directory, file_bytes=1_200)
        tails = collect_tails(self.journal.recover())
        self.found_end = tails[TOPIC, 0].end_offset if tails else 0
        ended = end_at_holes(tails, {TOPIC: topic}, lambda *_: has_copies) if may_lack_frames else []
        recover_partitions(self.journal, tails, {TOPIC: topic}, lambda _: False, producer_ids_begin=lambda: 1)
        truncations = [log.truncation(log.log_end_offset, 0) for log in ended]
        await self.journal.start(lambda: [self.log.snapshot_frame()], MemoryRecord(), truncations)

    async def fetch_to(self, end: int) -> None:
        for offset in range(self.log.log_end_offset, end):
            frame = data_frame(offset)
            self.log.track_replicated([frame])
            (location,) = await self.journal.append([frame])
            self.log.stored(frame, location)

    async def lose_copies(self, kept: int) -> None:
        """Copy the oldest file's frames forward, stop, and lose all copies except the first ``kept``."""
        copies = await relocate_oldest(self.journal, lambda _: self.log.active_segment, 1 << 20)
        await self.journal.close()
        newest = max(self.directory.glob("*.log"))
        with newest.open("r+b") as file:
            file.truncate(copies[kept].position - int(newest.stem))

    @property
    def offsets(self) -> list[int]:
        return [frame.base_offset for frame in self.log.index]


def test_frames_without_a_copy_stay_in_a_journal_that_has_lost_frames(tmp_path: Path) -> None:
    """Keep the frames behind a hole in the only replica, until the lost ones are put back."""

    async def scenario() -> None:
        replica = Replica(tmp_path)
        await replica.start()
        await replica.fetch_to(12)
        await replica.lose_copies(2)
        for _ in range(2):
            await replica.start(may_lack_frames=True, has_copies=False)
            assert replica.log.quarantined is not None
            assert replica.found_end == 12
            await replica.journal.close()

    run(scenario())


@pytest.mark.parametrize("kept", [0, 2])
def test_c12_a_journal_that_has_lost_frames_ends_at_its_first_hole(tmp_path: Path, kept: int) -> None:
    """Keep the frames before the hole, because an unclean election may have nothing else.

    The leader sends the later ones again, and a later start must not find the old ones beside them.
    """

    async def scenario() -> None:
        replica = Replica(tmp_path)
        await replica.start()
        await replica.fetch_to(12)
        await replica.lose_copies(kept)
        for _ in range(2):  # the first pass does not finish
            await replica.start(may_lack_frames=True)
            assert (replica.log.sealed_offset, replica.log.log_end_offset) == (0, kept)
            assert replica.offsets == [*range(kept)]
            await replica.journal.close()
        for end in (5, 20):
            await replica.start()
            await replica.fetch_to(end)
            await replica.journal.close()
            await replica.start()
            assert (replica.log.sealed_offset, replica.log.log_end_offset) == (0, end)
            assert replica.offsets == [*range(end)]
            await replica.journal.close()

    run(scenario())


def test_a_journal_without_a_hole_keeps_all_of_its_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        replica = Replica(tmp_path)
        await replica.start()
        await replica.fetch_to(12)
        await relocate_oldest(replica.journal, lambda _: replica.log.active_segment, 1 << 20)
        await replica.journal.close()
        await replica.start(may_lack_frames=True)
        assert replica.offsets == [*range(12)]
        await replica.journal.close()

    run(scenario())
