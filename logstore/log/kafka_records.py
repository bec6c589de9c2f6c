"""Records of the log as Kafka's record batches: frames of the tail, and rows of history.

A KAFKA_BATCH frame is sent as its producer sent it, with its offset and leader epoch in the first 16 bytes; its records
are neither read nor copied. Everything else is encoded. Consumers continue after the last offset that a batch covers,
so a batch at the end of a slice also covers the offsets after it that have no record.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameFlags, FrameType
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import placed
from logstore.limits import KIB
from logstore.log.frame_records import frame_records
from logstore.records.batch_identity import NO_IDENTITY
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA
from logstore.segments.offset_ranges import OffsetRanges, look_up

#: (leader epoch, first offset), both rising: ``LeaderEpochs.entries``.
Epochs = Sequence[tuple[int, int]]

_KAFKA_BATCH: Final = FrameType.KAFKA_BATCH
_NO_EPOCH: Final = -1
#: The most offsets that a batch can cover: the last offset delta has 32 bits.
_OFFSETS_MAX: Final = 2**31
# Smaller batches are copied into one buffer, because sending one more buffer costs more than the copy.
_COPIED_MAX: Final = 4 * KIB
_NO_CHANGES: Final = np.empty(0, np.int64)
_NO_RECORDS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in LOG_SCHEMA], schema=LOG_SCHEMA)


def filter_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of a read that hold records: transaction markers only take offsets."""
    return [frame for frame in frames if frame.header.has_records]


def wire_bytes(frame: Frame) -> int:
    """Return the most bytes that the frame's records take as record batches; an estimate if they must be encoded."""
    header, payload = frame
    return len(payload) if header.type is _KAFKA_BATCH else max(header.inflated_bytes, len(payload))


def frame_batches(frames: Sequence[Frame]) -> list[Buffer]:
    """Return the frames, all with records, as consecutive batches. Raises CorruptionError if one cannot be decoded."""
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    for run, same in itertools.groupby(frames, _run):
        if run is not None:
            pieces: Iterator[Buffer] = _encoded_frames(list(same))
        else:
            pieces = itertools.chain.from_iterable(
                placed(payload, header.base_offset, header.leader_epoch) for header, payload in same
            )
        for piece in pieces:
            if len(piece) < _COPIED_MAX:
                small.append(piece)
                continue
            if small:
                buffers.append(b"".join(small))
                small = []
            buffers.append(piece)
    if small:
        buffers.append(b"".join(small))
    return buffers


def _run(frame: Frame) -> object:
    """Return a value that is equal for neighbours that can become one batch, and None for frames that are batches. A
    batch has one leader epoch, one producer with consecutive sequence numbers, and with LogAppendTime one timestamp.
    """
    header = frame.header
    if header.type is _KAFKA_BATCH:
        return None
    place = header.base_offset if header.identity.is_producers else -1
    append_time_ms = header.append_time_ms if FrameFlags.LOG_APPEND_TIME in header.flags else -1
    return header.leader_epoch, header.flags & ~FrameFlags.RELOCATED, append_time_ms, place


def _encoded_frames(frames: Sequence[Frame]) -> Iterator[memoryview]:
    header = frames[0].header
    for records in frame_records(frames):
        yield encode_batch(
            records,
            leader_epoch=header.leader_epoch,
            identity=header.identity if header.identity.is_producers else NO_IDENTITY,
            log_append_time=FrameFlags.LOG_APPEND_TIME in header.flags,
            transactional=FrameFlags.TRANSACTIONAL in header.flags,
        )


def encode_history(
    batches: Sequence[pa.RecordBatch], next_offset: int, epochs: Epochs, append_times: OffsetRanges
) -> list[Buffer]:
    """Encode rising batches of LOG_SCHEMA, all with rows, as Kafka's. The last one also covers the offsets up to
    ``next_offset``. ``append_times`` are the ranges whose timestamps are append times.
    """
    last = len(batches) - 1
    return [
        batch
        for at, records in enumerate(batches)
        for batch in _encoded(records, next_offset if at == last else None, epochs, append_times)
    ]


def _encoded(
    records: pa.RecordBatch, end_offset: int | None, epochs: Epochs, append_times: OffsetRanges
) -> Iterator[memoryview]:
    """Yield a batch for each leader epoch: consumers remember the epoch of the batch that they read last, and look for
    its end at the leader (KIP-320). Append times also split batches, because a batch has one for all of its records.
    """
    offsets = int64_values(records.column("offset"))
    runs = BatchRuns(offsets, int64_values(records.column("timestamp")), epochs, append_times)
    row = 0
    while row < len(offsets):
        run = runs.run_from(row)
        end = None if end_offset is None or run.end_row < len(offsets) else min(run.end_offset, end_offset)
        yield encode_batch(
            records.slice(row, run.end_row - row),
            leader_epoch=run.leader_epoch,
            end_offset=end,
            log_append_time=run.is_append_time,
        )
        row = run.end_row


class BatchRun(NamedTuple):
    """Rows that one batch may have: up to ``end_row``, and up to ``end_offset`` if no other rows follow."""

    end_row: int
    end_offset: int
    leader_epoch: int
    is_append_time: bool


class BatchRuns:
    """The runs of rising records. The arguments are those of ``encode_history``."""

    def __init__(self, offsets: np.ndarray, times: np.ndarray, epochs: Epochs, append_times: OffsetRanges) -> None:
        self._offsets = offsets
        self._changes = np.flatnonzero(times[1:] != times[:-1]) + 1 if append_times else _NO_CHANGES
        self._epochs = epochs
        self._append_times = append_times

    def run_from(self, row: int) -> BatchRun:
        """Return the run that begins with the row."""
        base_offset = int(self._offsets[row])
        epoch, epoch_end = _epoch_at(base_offset, self._epochs)
        limit = base_offset + _OFFSETS_MAX
        if epoch_end is not None:
            limit = min(limit, epoch_end)
        stop = int(np.searchsorted(self._offsets, limit))
        is_append_time, other_type = look_up(base_offset, self._append_times)
        if other_type is not None:
            stop = min(stop, int(np.searchsorted(self._offsets, other_type)))
        if is_append_time and (at := int(np.searchsorted(self._changes, row, side="right"))) < len(self._changes):
            stop = min(stop, int(self._changes[at]))
        return BatchRun(stop, limit, epoch, is_append_time)


def gap_batch(start: int, end: int, epochs: Epochs) -> Buffer:
    """Return a batch without records that takes consumers from ``start`` to ``end``, or a part of the way."""
    end = min(end, start + _OFFSETS_MAX)
    epoch, _ = _epoch_at(end - 1, epochs)
    return encode_batch(_NO_RECORDS, leader_epoch=epoch, base_offset=start, end_offset=end)


def _epoch_at(offset: int, epochs: Epochs) -> tuple[int, int | None]:
    """Return the epoch that wrote ``offset``, and the first offset of the next one."""
    at = bisect_right(epochs, offset, key=lambda entry: entry[1])
    return epochs[at - 1][0] if at else _NO_EPOCH, epochs[at][1] if at < len(epochs) else None
