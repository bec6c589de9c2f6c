"""The leader's answers to one follower's fetches: what it compares, what it sends, and whose turn it is."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from logstore.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetMovedToTieredStorageError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
)
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.writer import FrameBuffers
from logstore.log.in_sync_replicas import InSyncReplicas
from logstore.log.partition_log import PartitionLog
from logstore.records.schema import WIRE_SCHEMA
from logstore.replication import fetch_session
from logstore.replication.fetch_session import FetchSession
from logstore.replication.protocol import Fetch, FetchedRow, FetchRow, decode_fetched, split_frames
from tests.support.manual_clock import ManualClock

TOPIC = UUID(int=1)
BATCH = pa.RecordBatch.from_pylist([{}], schema=WIRE_SCHEMA)
FRAME_BYTES = 128 + 100
LEADER, FOLLOWER = 1, 2


class Bytes:
    """A journal that keeps frames by their locations; no file has the ``freed`` ones any more."""

    def __init__(self) -> None:
        self.frames: dict[FrameLocation, memoryview] = {}
        self.freed: set[FrameLocation] = set()
        self.in_memory = True
        self.end = 0
        #: The future of the group on its way to the disk.
        self.reported: asyncio.Future[None] | None = None

    def add(self, frame: Frame) -> FrameLocation:
        buffers = FrameBuffers(self.end, self.end, 7)
        location = FrameLocation(self.end, buffers.add(frame))
        self.frames[location] = memoryview(b"".join(buffers.buffers()))
        self.end = buffers.end
        return location

    def group_reported(self) -> asyncio.Future[None] | None:
        return self.reported

    def recent_frame(self, location: FrameLocation) -> list[memoryview] | None:
        return [self.frames[location]] if self.in_memory else None

    def read_stored(self, locations: Sequence[FrameLocation]) -> list[memoryview]:
        if self.freed.intersection(locations):
            raise JournalRangeFreedError("freed")
        return [self.frames[location] for location in locations]


class Leader:
    def __init__(self, partitions: int = 1) -> None:
        self.clock = ManualClock()
        self.journal: Any = Bytes()
        self.logs = [
            PartitionLog("t", TOPIC, number, clock=self.clock, producer_id_expiration_ms=1)
            for number in range(partitions)
        ]
        for log in self.logs:
            self.lead(log, 1)
        self.followed: list[tuple[int, int]] = []

    @staticmethod
    def lead(log: PartitionLog, epoch: int) -> None:
        both = (LEADER, FOLLOWER)
        log.become_leader(epoch, InSyncReplicas(LEADER, both, both, min_in_sync=lambda: 1, now=0.0))

    def append(self, partition: int = 0, count: int = 1) -> None:
        log = self.logs[partition]
        for _ in range(count):
            frame = log.next_frame(BATCH, pa.py_buffer(bytes(100)), inflated_bytes=1, log_append_time=True)
            log.track(frame)
            log.stored(frame, self.journal.add(frame))

    def session(self, broker_epoch: int = 5) -> FetchSession:
        return FetchSession(
            FOLLOWER,
            broker_epoch,
            self.journal,
            self.clock,
            lambda topic_id, partition: self.logs[partition] if topic_id == TOPIC else None,
            lambda log, broker: self.followed.append((log.partition, broker)),
        )


def row(partition: int, offset: int, last_epoch: int = -1, *, epoch: int = 1, max_bytes: int = 1 << 20) -> FetchRow:
    return FetchRow(partition, TOPIC, partition, epoch, offset, last_epoch, max_bytes)


async def ask(
    session: FetchSession, *rows: FetchRow, max_bytes: int = 1 << 20, wait_ms: int = 0, forgotten: Sequence[int] = ()
) -> dict[int, tuple[FetchedRow, list[int]]]:
    """Fetch; return by session index the answer and the base offsets of its frames."""
    body = b"".join(await session.fetch(Fetch(wait_ms, 1, max_bytes, list(rows), list(forgotten))))
    return {
        answer.session_index: (answer, [frame.header.base_offset for frame in split_frames(data)])
        for answer, data in decode_fetched(body)
    }


def in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(), 30)

    asyncio.run(run())


def test_frames_come_as_they_are_stored_from_memory_or_from_files() -> None:
    async def scenario() -> None:
        leader = Leader()
        leader.append(count=3)
        session = leader.session()
        answer, bases = (await ask(session, row(0, 0)))[0]
        assert (bases, answer.high_watermark, answer.error) == ([0, 1, 2], 0, 0)
        leader.journal.in_memory = False
        answer, bases = (await ask(session, row(0, 1, 1)))[0]
        assert (bases, answer.high_watermark) == ([1, 2], 1), "the position of the fetch is the acknowledgement"

    in_loop(scenario)


def test_an_answer_has_no_more_bytes_than_wanted_but_one_frame_at_least() -> None:
    async def scenario() -> None:
        leader = Leader(2)
        leader.append(0, 5)
        leader.append(1, 5)
        session = leader.session()
        found = await ask(session, row(0, 0, max_bytes=2 * FRAME_BYTES), row(1, 0), max_bytes=4 * FRAME_BYTES)
        assert {index: bases for index, (_, bases) in found.items()} == {0: [0, 1], 1: [0, 1]}
        found = await ask(leader.session(), row(0, 0, max_bytes=1), row(1, 0), max_bytes=10)
        assert [bases for _, bases in found.values()] == [[0]], "larger than any bound, and sent by itself"

    in_loop(scenario)


def test_each_partition_gets_its_turn_when_not_all_fit() -> None:
    async def scenario() -> None:
        leader = Leader(6)
        for partition in range(6):
            leader.append(partition, 3)
        session = leader.session()
        ends = [0] * 6
        found = await ask(session, *(row(partition, 0) for partition in range(6)), max_bytes=2 * FRAME_BYTES)
        for _ in range(8):
            changed = []
            for index, (_, bases) in found.items():
                ends[index] += len(bases)
                if bases:
                    changed.append(row(index, ends[index], 1))
            found = await ask(session, *changed, max_bytes=2 * FRAME_BYTES)
        assert min(ends) > 0, "nobody waits for ever"
        assert sum(ends) >= 16

    in_loop(scenario)


def test_rows_are_refused_by_name_in_another_epoch_and_when_their_records_are_in_the_table() -> None:
    async def scenario() -> None:
        leader = Leader()
        session = leader.session()

        async def error(asked: FetchRow) -> int:
            return (await ask(session, asked))[0][0].error

        leader.logs[0].resign(2)
        assert await error(row(0, 0)) == FencedLeaderEpochError.kafka_code
        assert await error(row(0, 0, epoch=2)) == NotLeaderOrFollowerError.kafka_code
        assert await error(row(0, 0, epoch=3)) == UnknownLeaderEpochError.kafka_code
        assert await error(row(0, 0)._replace(topic_id=UUID(int=9))) == UnknownTopicIdError.kafka_code
        leader.lead(leader.logs[0], 3)
        leader.append(count=2)
        await ask(session, row(0, 2, 3, epoch=3))
        leader.logs[0].seal(1)
        assert await error(row(0, 0, epoch=3)) == OffsetMovedToTieredStorageError.kafka_code
        assert await error(row(0, 1, 3, epoch=3)) == 0

    in_loop(scenario)


def test_records_that_are_sealed_while_a_fetch_waits_are_returned() -> None:
    async def scenario() -> None:
        leader = Leader()
        log = leader.logs[0]
        session = leader.session()
        waiting = asyncio.create_task(ask(session, row(0, 0), wait_ms=10_000))
        await asyncio.sleep(0)
        leader.append(count=2)  # this wakes the fetch, which runs later
        log.require_leader().commit((LEADER,), (LEADER,), 0.0)
        log.seal(1)
        assert (await waiting)[0][0].error == OffsetMovedToTieredStorageError.kafka_code

    in_loop(scenario)


def test_frames_that_are_freed_while_they_are_read_come_with_the_next_answer() -> None:
    async def scenario() -> None:
        leader = Leader()
        leader.append()
        session = leader.session()
        leader.journal.in_memory = False
        leader.journal.freed = set(leader.journal.frames)
        assert await ask(session, row(0, 0)) == {}
        leader.journal.freed.clear()
        assert (await ask(session))[0][1] == [0]

    in_loop(scenario)


def test_a_diverging_position_is_answered_with_where_the_histories_part_and_is_no_acknowledgement() -> None:
    async def scenario() -> None:
        leader = Leader()
        log = leader.logs[0]
        leader.append(count=2)
        log.resign(4)
        leader.lead(log, 5)
        leader.append()
        session = leader.session()
        answer, bases = (await ask(session, row(0, 4, 3, epoch=5)))[0]
        assert (answer.diverging_epoch, answer.diverging_end_offset, bases) == (1, 2, [])
        assert (log.high_watermark, leader.followed) == (0, [])

    in_loop(scenario)


def test_a_fetch_waits_for_frames_and_reports_moved_ends_when_its_time_is_over() -> None:
    async def scenario() -> None:
        leader = Leader()
        session = leader.session()
        assert (await ask(session, row(0, 0)))[0][0].high_watermark == 0
        assert await ask(session) == {}, "nothing has changed"
        waiting = asyncio.create_task(ask(session, wait_ms=10_000))
        await asyncio.sleep(0.01)
        leader.append()
        assert (await waiting)[0][1] == [0]
        await ask(session, row(0, 1, 1))
        assert await ask(session, wait_ms=1) == {}, "the high watermark was told"

    in_loop(scenario)


def test_a_wake_without_news_in_the_moment_when_the_time_is_over_does_not_prolong_the_wait() -> None:
    async def scenario() -> None:
        leader = Leader()
        session = leader.session()
        await ask(session, row(0, 0))
        waiting = asyncio.create_task(ask(session, wait_ms=20))
        await asyncio.sleep(0)
        time.sleep(0.03)  # noqa: ASYNC251 - the time is over before the loop notices it
        session._woken(0)
        assert await asyncio.wait_for(waiting, 5) == {}

    in_loop(scenario)


def test_frames_on_their_way_to_the_disk_go_with_those_that_are_there() -> None:
    async def scenario() -> None:
        leader = Leader()
        session = leader.session()
        await ask(session, row(0, 0))
        leader.append()
        reported = leader.journal.reported = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(ask(session, wait_ms=10_000))
        await asyncio.sleep(0)
        leader.append()
        reported.set_result(None)
        assert (await waiting)[0][1] == [0, 1], "one round for both"

    in_loop(scenario)


def test_a_slow_disk_holds_up_nothing_that_is_stored_nor_does_any_a_large_answer() -> None:
    async def scenario() -> None:
        leader = Leader()
        session = leader.session()
        leader.append()
        leader.journal.reported = asyncio.get_running_loop().create_future()
        assert (await asyncio.wait_for(ask(session, row(0, 0), wait_ms=10_000), 5))[0][1] == [0]
        leader.append(count=2 * fetch_session._SMALL_BYTES // FRAME_BYTES)
        large = asyncio.create_task(ask(session, row(0, 1, 1), wait_ms=10_000))
        for _ in range(3):
            await asyncio.sleep(0)
        assert large.done(), "it costs more than a round"

    in_loop(scenario)


def test_a_late_request_of_a_former_connection_takes_no_news_from_the_new_one() -> None:
    async def scenario() -> None:
        leader = Leader()
        former, session = leader.session(), leader.session()
        await ask(session, row(0, 0))
        await ask(former, row(0, 0))
        former.close()
        leader.append()
        assert (await ask(session, wait_ms=5))[0][1] == [0]

    in_loop(scenario)


def test_a_request_from_before_the_follower_registered_again_is_no_acknowledgement() -> None:
    async def scenario() -> None:
        leader = Leader()
        leader.append(count=2)
        former, session = leader.session(5), leader.session(6)
        await ask(session, row(0, 0))
        assert (await ask(former, row(0, 2, 1)))[0][0].error == NotLeaderOrFollowerError.kafka_code
        assert leader.logs[0].high_watermark == 0
        assert leader.followed == [(0, FOLLOWER)]

    in_loop(scenario)


def test_a_partition_that_is_forgotten_is_not_answered() -> None:
    async def scenario() -> None:
        leader = Leader(2)
        session = leader.session()
        await ask(session, row(0, 0), row(1, 0))
        leader.append(0)
        leader.append(1)
        assert list(await ask(session, forgotten=[0])) == [1]
        assert leader.logs[0].followers[FOLLOWER].wake is None

    in_loop(scenario)
