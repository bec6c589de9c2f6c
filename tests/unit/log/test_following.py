"""A partition log follows its leader's: where the histories diverge, what may follow, what a truncation drops."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pytest

from logstore.errors import CorruptionError
from logstore.journal.frame import Frame, FrameLocation, FrameType
from logstore.log.following import diverged_at, require_follows, truncation_end
from logstore.log.partition_log import PartitionLog
from logstore.records.schema import WIRE_SCHEMA
from tests.support.manual_clock import ManualClock

TOPIC = UUID(int=1)


def log_of(*batches: tuple[int, int]) -> PartitionLog:
    """Return a log without a leader, with a batch for each (epoch, number of records)."""
    log = PartitionLog("t", TOPIC, 0, clock=ManualClock(), producer_id_expiration_ms=1)
    for epoch, count in batches:
        if not log.is_leader or log.leader_epoch != epoch:
            log.become_leader(epoch)
        frame = frame_of(log, count)
        log.track(frame)
        log.stored(frame, FrameLocation(log.log_end_offset, 1))
    log.resign(log.leader_epoch + 1)
    return log


def frame_of(log: PartitionLog, count: int) -> Frame:
    batch = pa.RecordBatch.from_pylist([{}] * count, schema=WIRE_SCHEMA)
    return log.next_frame(batch, pa.py_buffer(b"x"), inflated_bytes=1, log_append_time=True)


def in_loop(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        scenario()

    asyncio.run(run())


def frames(*batches: tuple[int, int], begin: int = 0) -> list[Frame]:
    """Return frames of (epoch, number of records), from offset ``begin`` on."""
    log = log_of((1, 1))
    log.become_leader(9)
    found = []
    at = begin
    for epoch, count in batches:
        header, payload = frame_of(log, count)
        found.append(Frame(header._replace(base_offset=at, leader_epoch=epoch), payload))
        at += count
    return found


def test_a_position_in_the_same_history_does_not_diverge() -> None:
    leader = log_of((1, 2), (1, 3), (4, 2))
    assert diverged_at(leader, 0, -1) is None
    assert diverged_at(leader, 2, 1) is None
    assert diverged_at(leader, 5, 1) is None
    assert diverged_at(leader, 7, 4) is None


def test_a_longer_or_later_history_diverges_where_the_leaders_ends() -> None:
    leader = log_of((1, 2), (1, 3), (4, 2))
    assert diverged_at(leader, 6, 1) == (1, 5), "epoch 1 ended at 5"
    assert diverged_at(leader, 6, 3) == (1, 5), "the leader has no epoch 3"
    assert diverged_at(leader, 8, 4) == (4, 7)
    assert diverged_at(leader, 8, 9) == (4, 7)
    assert diverged_at(leader, 3, 0) == (-1, 0), "all that the leader has is newer"


def test_a_position_inside_a_frame_diverges_at_the_frame() -> None:
    leader = log_of((1, 2), (1, 3))
    assert diverged_at(leader, 4, 1) == (1, 2)
    leader._high_watermark.advance(5)
    leader.seal(4)
    assert diverged_at(leader, 4, 1) is None, "a log that begins at the table ends there"


def test_a_follower_truncates_to_the_end_of_the_last_common_epoch() -> None:
    follower = log_of((1, 2), (3, 3), (5, 2))
    assert truncation_end(follower, 3, 4) == 4, "the leader's epoch 3 is shorter"
    assert truncation_end(follower, 3, 9) == 5, "its own epoch 3 is shorter"
    assert truncation_end(follower, 2, 4) == 2, "it has epoch 3 instead"
    assert truncation_end(follower, -1, 0) == 0
    assert truncation_end(follower, 5, 7) == 6, "never its own end: it would ask the same again"


def test_a_truncation_ends_at_a_frame_and_not_below_the_table() -> None:
    def scenario() -> None:
        log = log_of((1, 2), (3, 3), (5, 2))
        assert log.truncation(4, 6).header.base_offset == 2
        assert log.truncation(5, 6).header.base_offset == 5
        assert log.truncation(99, 6).header.base_offset == 7
        log._high_watermark.advance(7)
        log.seal(3)
        frame = log.truncation(1, 6)
        assert (frame.header.type, frame.header.base_offset) == (FrameType.TRUNCATE, 3)
        log.track(frame)
        assert not log.is_quiet
        log.stored(frame, FrameLocation(9, 1))
        assert (log.sealed_offset, log.high_watermark, log.log_end_offset, log.next_offset) == (3, 3, 3, 3)
        assert log.state.leader_epochs.entries == ((1, 0), (3, 2))
        assert log.is_quiet

    in_loop(scenario)


def test_a_truncation_that_fails_changes_nothing() -> None:
    def scenario() -> None:
        log = log_of((1, 2), (3, 3))
        frame = log.truncation(2, 6)
        log.track(frame)
        log.failed(frame, CorruptionError("x"))
        assert (log.is_quiet, log.log_end_offset, log.next_offset) == (True, 5, 5)
        log.check()

    in_loop(scenario)


def test_frames_that_follow_are_taken() -> None:
    log = log_of((1, 2))
    log.resign(6)
    require_follows(log, frames((1, 2), (3, 1), (6, 1), begin=2))


@pytest.mark.parametrize(
    "sent",
    [
        frames((1, 1), begin=3),
        frames((1, 1), begin=1),
        frames((7, 1), begin=2),
        frames((3, 1), (2, 1), begin=2),
        [one._replace(header=one.header._replace(partition=1)) for one in frames((1, 1), begin=2)],
        [one._replace(header=one.header._replace(type=FrameType.SNAPSHOT)) for one in frames((1, 1), begin=2)],
        [*frames((1, 1), begin=2), *frames((1, 1), begin=4)],
    ],
    ids=["hole", "overlap", "newer epoch", "falling epochs", "other partition", "no records", "hole between"],
)
def test_frames_that_do_not_follow_are_refused(sent: list[Frame]) -> None:
    log = log_of((1, 2))
    log.resign(6)
    with pytest.raises(CorruptionError):
        require_follows(log, sent)


def test_the_first_frame_behind_the_table_may_begin_below_it() -> None:
    log = log_of((1, 4))
    log._high_watermark.advance(4)
    log.seal(4)
    log.resign(6)
    require_follows(log, frames((3, 4), begin=2))
    with pytest.raises(CorruptionError):
        require_follows(log, frames((3, 2), begin=2))


def test_a_follower_takes_the_leaders_offsets_as_far_as_it_has_the_records() -> None:
    log = log_of((1, 2), (1, 3))
    log.follow_leader(9, 0, 0)
    assert (log.high_watermark, log.sealed_offset) == (5, 0)
    log.follow_leader(3, 2, 1)
    assert (log.high_watermark, log.sealed_offset, log.log_start_offset) == (5, 2, 1)
    log.follow_leader(9, 9, 9)
    assert (log.high_watermark, log.sealed_offset, log.log_start_offset) == (5, 5, 5)
    log.check()


def test_a_truncation_that_a_roll_overtakes_ends_at_what_is_sealed() -> None:
    log = log_of((1, 4))
    truncation = log.truncation(0, 2)
    log.track(truncation)
    log.follow_leader(high_watermark=3, sealed_offset=3, log_start_offset=0)
    log.stored(truncation, FrameLocation(9, 1))
    assert (log.sealed_offset, log.log_end_offset, log.next_offset) == (3, 3, 3)
    assert log.is_quiet


def test_a_log_is_freed_with_its_last_reference() -> None:
    """Free a log without the garbage collector, which ignores all objects from the store's start."""

    def scenario() -> None:
        log = weakref.ref(log_of((1, 2), (2, 1)))
        assert log() is None

    gc.disable()
    try:
        in_loop(scenario)
    finally:
        gc.enable()
