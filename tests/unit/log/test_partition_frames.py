"""The frames that a partition makes: their times, and the headers of truncations and snapshots."""

from uuid import UUID

import pyarrow as pa

from logstore.journal.frame import Frame, FrameFlags, FrameHeader, FrameType
from logstore.log.partition_frames import PartitionFrames
from logstore.records.batch_identity import NO_IDENTITY
from logstore.records.schema import WIRE_SCHEMA
from tests.support.manual_clock import ManualClock

TOPIC = UUID(int=1)


def data(frames: PartitionFrames, *, log_append_time: bool = False, timestamp: int | None = None) -> FrameHeader:
    rows = [{} if timestamp is None else {"timestamp": timestamp}]
    batch = pa.RecordBatch.from_pylist(rows, schema=WIRE_SCHEMA)
    return frames.data(
        batch,
        pa.py_buffer(b"x"),
        base_offset=5,
        leader_epoch=2,
        inflated_bytes=1,
        log_append_time=log_append_time,
        identity=NO_IDENTITY,
    ).header


def test_append_times_never_fall() -> None:
    clock = ManualClock(wall_ms=1_000)
    frames = PartitionFrames(TOPIC, 3, clock)
    assert data(frames).append_time_ms == 1_000
    clock.step_wall(-500)
    assert (frames.now_ms(), data(frames).append_time_ms) == (1_000, 1_000)
    frames.recover_append_time(2_000)
    assert data(frames).append_time_ms == 2_000
    clock.step_wall(5_000)
    assert data(frames).append_time_ms == 5_500


def test_the_largest_timestamp_is_the_records_or_the_append_time() -> None:
    frames = PartitionFrames(TOPIC, 3, ManualClock(wall_ms=1_000))
    assert data(frames, timestamp=7).max_timestamp_ms == 7
    assert data(frames).max_timestamp_ms == 1_000
    header = data(frames, timestamp=7, log_append_time=True)
    assert (header.max_timestamp_ms, header.flags) == (1_000, FrameFlags.LOG_APPEND_TIME)


def test_truncations_and_snapshots_take_no_offset_and_have_the_last_append_time() -> None:
    clock = ManualClock(wall_ms=1_000)
    frames = PartitionFrames(TOPIC, 3, clock)
    data(frames)
    clock.advance(9_000)
    for frame_type, frame, payload in (
        (FrameType.TRUNCATE, frames.truncation(8, 4), b""),
        (FrameType.SNAPSHOT, frames.snapshot(8, 4, b"state"), b"state"),
    ):
        header = FrameHeader(frame_type, FrameFlags(0), TOPIC, 3, 8, 0, 4, 1_000, 1_000, 0)
        assert frame == Frame(header, payload)
