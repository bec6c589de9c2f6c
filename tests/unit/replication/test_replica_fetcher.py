"""The follower's side: its requests, the answers that it believes, and how it continues after each kind of trouble."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from logstore.errors import FencedLeaderEpochError, LogStoreError, NetworkError, StorageFullError, UnknownTopicIdError
from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameLocation, FrameType
from logstore.journal.writer import FrameBuffers
from logstore.log.partition_log import PartitionLog
from logstore.records.schema import WIRE_SCHEMA
from logstore.replication.protocol import Fetch, FetchedRow, decode_fetch, encode_fetched
from logstore.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from tests.support.eventually import eventually_async
from tests.support.manual_clock import ManualClock
from tests.support.virtual_time import run

TOPIC = UUID(int=1)
EPOCH = 5
SETTINGS = FetcherSettings(
    wait_max_ms=10, partition_bytes_max=1_000, response_bytes_max=1_000, backoff_s=0.01, timeout_s=5
)


class HeldJournal:
    """A journal that stores frames when the test releases them."""

    def __init__(self) -> None:
        self.held: list[tuple[Sequence[Frame], Any]] = []
        self.released: list[int] = []
        self.end = 0

    def store(self, frames: Sequence[Frame], told: Any) -> None:
        self.held.append((frames, told))

    def finish(self, error: LogStoreError | None = None) -> None:
        frames, told = self.held.pop(0)
        locations = []
        for _ in frames:
            locations.append(FrameLocation(self.end, 1))
            self.end += 1
        told((), error) if error is not None else told(locations, None)

    def truncate(self, *_: Any) -> None: ...

    def release(self, _: Any, __: int, sealed: int) -> None:
        self.released.append(sealed)


class Follower:
    """A fetcher whose leader is the test."""

    def __init__(self) -> None:
        self.journal: Any = HeldJournal()
        self.log = PartitionLog("t", TOPIC, 0, clock=ManualClock(), producer_id_expiration_ms=1)
        self.asked: asyncio.Queue[tuple[Fetch, asyncio.Future[Buffer]]] = asyncio.Queue()
        self.connections = 0
        self.is_stale = False
        self.resets = 0
        self.fetcher = ReplicaFetcher(2, self._connect, self.journal, self._reset, SETTINGS)

    async def _connect(self) -> Any:
        self.connections += 1
        self.is_stale = False
        return self

    async def request(self, message_type: Any, body: Any = b"", timeout_s: float | None = None) -> Buffer:
        del message_type, timeout_s
        answer: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        await self.asked.put((decode_fetch(bytes(body)), answer))
        return await answer

    def close(self) -> None: ...

    async def _reset(self, *_: Any) -> bool:
        self.resets += 1
        return False

    def follow(self, epoch: int = EPOCH) -> None:
        self.log.resign(epoch)
        topic: Any = None
        self.fetcher.follow(topic, self.log, epoch)

    async def next_row(self) -> tuple[Any, asyncio.Future[Buffer]]:
        """Return the next request that has a row, and answer others with nothing."""
        while True:
            fetch, answer = await self.asked.get()
            if fetch.rows:
                return fetch.rows[0], answer
            await asyncio.sleep(0.001)
            answer.set_result(encode_fetched([], [])[0])


def frames(begin: int, count: int = 1, epoch: int = EPOCH, partition: int = 0) -> bytes:
    log = PartitionLog("t", TOPIC, partition, clock=ManualClock(), producer_id_expiration_ms=1)
    log.become_leader(epoch)
    batch = pa.RecordBatch.from_pylist([{}], schema=WIRE_SCHEMA)
    buffers = FrameBuffers(0, 0, 1)
    for at in range(begin, begin + count):
        header, payload = log.next_frame(batch, pa.py_buffer(b"x"), inflated_bytes=1, log_append_time=True)
        buffers.add(Frame(header._replace(base_offset=at), payload))
    return b"".join(buffers.buffers())


def answer_of(
    row: Any, data: bytes = b"", *, error: int = 0, diverging: tuple[int, int] = (-1, -1), ends: Any = None
) -> bytes:
    found = FetchedRow(row.session_index, error, *(ends or (0, 0, 0)), *diverging, len(data))
    return b"".join(encode_fetched([found], [data]))


def in_loop(scenario: Callable[[Follower], Awaitable[None]]) -> None:
    async def followed() -> None:
        follower = Follower()
        try:
            await asyncio.wait_for(scenario(follower), 30)
        finally:
            await follower.fetcher.stop()

    run(followed())


async def replicate(follower: Follower, count: int) -> None:
    row, answer = await follower.next_row()
    answer.set_result(answer_of(row, frames(row.fetch_offset, count)))
    await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
    follower.journal.finish()


def test_the_next_fetch_acknowledges_what_is_durable() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        row, answer = await follower.next_row()
        assert (row.fetch_offset, row.last_fetched_epoch, row.leader_epoch) == (0, -1, EPOCH)
        answer.set_result(answer_of(row, frames(0, 2), ends=(1, 0, 0)))
        await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
        await asyncio.sleep(0.05)
        assert follower.asked.empty(), "not durable yet"
        assert follower.log.high_watermark == 0
        follower.journal.finish()
        row, _ = await follower.next_row()
        assert (row.fetch_offset, row.last_fetched_epoch) == (2, EPOCH)
        assert follower.log.high_watermark == 1

    in_loop(scenario)


def test_a_leader_that_has_not_heard_of_the_topic_is_asked_again_soon() -> None:
    """Retry soon, because a new topic takes no append with acks=all until then."""

    async def scenario(follower: Follower) -> None:
        follower.fetcher._settings = dataclasses.replace(SETTINGS, backoff_s=60, wait_max_ms=60_000)
        follower.follow()
        row, answer = await follower.next_row()
        answer.set_result(answer_of(row, error=UnknownTopicIdError.kafka_code))
        fetch, answer = await follower.asked.get()
        assert fetch.rows == []
        assert fetch.max_wait_ms <= 50, "nothing holds the next request up"
        answer.set_result(encode_fetched([], [])[0])
        await follower.next_row()

    in_loop(scenario)


def test_an_answer_is_not_believed_once_the_log_follows_another_epoch() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        row, late = await follower.next_row()
        follower.follow(EPOCH + 2)
        late.set_result(answer_of(row, frames(0)))
        row, answer = await follower.next_row()
        assert (row.leader_epoch, row.session_index) == (EPOCH + 2, 1)
        answer.set_result(answer_of(row._replace(session_index=0), frames(0)))
        await asyncio.sleep(0.02)
        assert not follower.journal.held

    in_loop(scenario)


def test_an_answer_is_not_believed_by_a_leader() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        await replicate(follower, 2)
        row, late = await follower.next_row()
        follower.log.become_leader(EPOCH + 1)
        late.set_result(answer_of(row, diverging=(EPOCH, 1)))
        await asyncio.sleep(0.02)
        assert not follower.journal.held
        assert follower.log.log_end_offset == 2

    in_loop(scenario)


def test_an_answer_for_another_end_truncates_nothing() -> None:
    """Answer for an old end: the model of replication lost acknowledged records this way."""

    async def scenario(follower: Follower) -> None:
        follower.follow()
        await replicate(follower, 3)
        row, late = await follower.next_row()
        frame = follower.log.truncation(2, EPOCH)
        follower.log.track(frame)
        follower.log.stored(frame, FrameLocation(99, 1))
        late.set_result(answer_of(row, diverging=(EPOCH, 1)))
        await asyncio.sleep(0.02)
        assert not follower.journal.held
        assert follower.log.log_end_offset == 2

    in_loop(scenario)


def test_a_diverging_end_truncates_by_a_journal_frame_and_asks_again() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        await replicate(follower, 3)
        row, answer = await follower.next_row()
        answer.set_result(answer_of(row, diverging=(EPOCH, 1)))
        await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
        ((frame,), _) = follower.journal.held[0]
        assert (frame.header.type, frame.header.base_offset) == (FrameType.TRUNCATE, 1)
        follower.journal.finish()
        row, _ = await follower.next_row()
        assert row.fetch_offset == follower.log.log_end_offset == 1

    in_loop(scenario)


async def diverge(follower: Follower) -> tuple[PartitionLog, Fetch, asyncio.Future[Buffer]]:
    """Replicate two partitions with three records each; return the second log and the fetch that acknowledges both."""
    other = PartitionLog("t", TOPIC, 1, clock=ManualClock(), producer_id_expiration_ms=1)
    other.resign(EPOCH)
    topic: Any = None
    follower.follow()
    follower.fetcher.follow(topic, other, EPOCH)
    fetch, answer = await follower.asked.get()
    both = [frames(0, 3), frames(0, 3, partition=1)]
    rows = [FetchedRow(row.session_index, 0, 0, 0, 0, -1, -1, len(both[row.partition])) for row in fetch.rows]
    answer.set_result(b"".join(encode_fetched(rows, [both[row.partition] for row in fetch.rows])))
    await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
    follower.journal.finish()
    fetch, answer = await follower.asked.get()
    assert [row.fetch_offset for row in fetch.rows] == [3, 3]
    return other, fetch, answer


def test_frames_do_not_wait_for_the_truncation_of_another_partition() -> None:
    async def scenario(follower: Follower) -> None:
        other, fetch, answer = await diverge(follower)
        more = frames(3, partition=1)
        index = {row.partition: row.session_index for row in fetch.rows}
        rows = [
            FetchedRow(index[0], 0, 0, 0, 0, EPOCH, 1, 0),
            FetchedRow(index[1], 0, 0, 0, 0, -1, -1, len(more)),
        ]
        answer.set_result(b"".join(encode_fetched(rows, [more])))
        await eventually_async(lambda: len(follower.journal.held) == 2, "one waits for the other")
        assert follower.asked.empty()
        for _ in range(2):
            follower.journal.finish()
        fetch, _ = await follower.asked.get()
        assert {row.partition: row.fetch_offset for row in fetch.rows} == {0: 1, 1: 4}
        assert (follower.log.log_end_offset, other.log_end_offset) == (1, 4)

    in_loop(scenario)


def test_an_answer_is_not_believed_once_the_log_follows_another_epoch_since_it_came() -> None:
    async def scenario(follower: Follower) -> None:
        other, fetch, answer = await diverge(follower)
        index = {row.partition: row.session_index for row in fetch.rows}
        rows = [FetchedRow(index[partition], 0, 0, 0, 0, EPOCH, 1, 0) for partition in (0, 1)]
        answer.set_result(b"".join(encode_fetched(rows, [])))
        await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
        other.resign(EPOCH + 1)
        follower.journal.finish()
        await asyncio.sleep(0.02)
        assert not follower.journal.held
        assert (follower.log.log_end_offset, other.log_end_offset) == (1, 3)

    in_loop(scenario)


def test_a_partition_that_is_followed_again_during_its_truncation_is_asked_for_once() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        await replicate(follower, 3)
        before, answer = await follower.next_row()
        answer.set_result(answer_of(before, diverging=(EPOCH, 1)))
        await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
        follower.follow()
        follower.journal.finish()
        fetch, _ = await follower.asked.get()
        assert [row.session_index for row in fetch.rows] == [before.session_index + 1]
        assert list(fetch.forgotten) == [before.session_index]

    in_loop(scenario)


def test_frames_that_do_not_follow_are_left_and_asked_for_again() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        for bad in (frames(1), frames(0, epoch=EPOCH + 1), frames(0)[:-1], b"x" * 200):
            row, answer = await follower.next_row()
            assert row.fetch_offset == 0
            answer.set_result(answer_of(row, bad))
        await follower.next_row()
        assert not follower.journal.held
        assert follower.connections == 1

    in_loop(scenario)


def test_a_full_disk_is_asked_again_from_the_same_end_and_a_broken_one_begins_again() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        for error, connections in ((StorageFullError("full"), 1), (NetworkError("broken"), 2)):
            row, answer = await follower.next_row()
            answer.set_result(answer_of(row, frames(0, 2)))
            await eventually_async(lambda: bool(follower.journal.held), "nothing was stored")
            follower.journal.finish(error)
            assert (follower.log.log_end_offset, follower.log.next_offset) == (0, 0)
            await eventually_async(lambda: not follower.asked.empty(), "not asked again")
            assert follower.connections == connections

    in_loop(scenario)


def test_an_epoch_that_the_leader_does_not_have_is_asked_for_again_until_there_is_another() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        for _ in range(2):
            row, answer = await follower.next_row()
            answer.set_result(answer_of(row, error=FencedLeaderEpochError.kafka_code))
        follower.fetcher.unfollow((TOPIC, 0))
        await asyncio.sleep(0.1)
        assert follower.log.log_end_offset == 0

    in_loop(scenario)


def test_a_connection_from_before_a_new_registration_is_left_and_all_rows_are_sent_again() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        row, answer = await follower.next_row()
        follower.is_stale = True
        answer.set_result(answer_of(row))
        row, _ = await follower.next_row()
        assert (follower.connections, row.fetch_offset) == (2, 0)

    in_loop(scenario)


def test_frames_that_the_leader_has_sealed_are_freed() -> None:
    async def scenario(follower: Follower) -> None:
        follower.follow()
        await replicate(follower, 2)
        row, answer = await follower.next_row()
        answer.set_result(answer_of(row, ends=(2, 1, 0)))
        await eventually_async(lambda: follower.journal.released == [1], "not freed")
        assert (follower.log.high_watermark, follower.log.sealed_offset) == (2, 1)

    in_loop(scenario)
