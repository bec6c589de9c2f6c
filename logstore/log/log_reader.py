"""One read path over a partition: history from segments, the un-sealed tail from the journal, never both.

``sealed_offset`` decides on the event loop which of the two serves an offset; ``SliceReader`` reads and decodes in
threads. If a journal range is freed or a segment replaced during a read, that step starts again on the newer state.
"""

import asyncio
import dataclasses
import functools
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from logstore.delta.snapshot import SegmentFile
from logstore.errors import CorruptionError, OffsetOutOfRangeError, StorageError
from logstore.filesystem import Buffer
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import HEADER_BYTES
from logstore.journal.journal import Journal
from logstore.limits import MIB, SEARCHED_BYTES_MAX
from logstore.log.isolation import Isolation
from logstore.log.kafka_records import gap_batch
from logstore.log.partition_log import PartitionLog
from logstore.log.slice_reader import SliceReader
from logstore.log.slices import Search, Slice, Wanted
from logstore.log.topic import Topic
from logstore.protocol.record_batch import RecordBatch
from logstore.records.schema import LOG_SCHEMA
from logstore.records.where.evaluation import Where
from logstore.table_files import TableFiles

T = TypeVar("T")
C = TypeVar("C")
SegmentRead = Callable[[TableFiles, SegmentFile, int, Wanted], Slice[C]]
_ATTEMPTS = 5
# The tail is searched in pieces of this size.
_SEARCHED_PIECE_BYTES = MIB
# A response that has this part of its maximum bytes is not filled further.
_FULL_PART = 0.75


@dataclass(frozen=True, slots=True)
class FetchResult(Generic[C]):
    """The ``records`` of a read, by rising offset. The next read begins at ``next_offset``, which skips gaps.

    Records are a table of LOG_SCHEMA, or record batches as they are stored, or the bytes of Kafka's record batches. The
    first batch may begin below the requested offset.
    """

    records: C
    count: int
    num_bytes: int
    next_offset: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


class LogReader:
    def __init__(self, journal: Journal, executor: Executor, refresh: Callable[[Topic], Awaitable[None]]) -> None:
        self._slices = SliceReader(journal)
        self._executor = executor
        self._refresh = refresh

    async def read(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        where: Where | None = None,
    ) -> FetchResult[pa.Table]:
        """Return the records from ``offset`` on, up to ``max_bytes``, and at least one if there is any.

        The read ends with the piece (a row group, a run of the tail) that reaches ``min_bytes``. Raises
        OffsetOutOfRangeError outside [log start, high watermark]. With ``where`` only records that it selects are
        returned, maybe none: the search ends when it has read SEARCHED_BYTES_MAX of records, and continues at the next
        offset.
        """

        async def of_tail(wanted: Wanted) -> Slice[pa.RecordBatch]:
            piece_bytes = wanted.max_bytes if where is None else _SEARCHED_PIECE_BYTES
            frames = log.index.frames_by_bytes(wanted.start, wanted.end, piece_bytes)
            return await self._in_thread(lambda: self._slices.read_frames(frames, wanted))

        of_segment = self._slices.read_segment
        result = await self._read(topic, log, offset, of_segment, of_tail, max_bytes, min_bytes, isolation, where)
        return dataclasses.replace(result, records=pa.Table.from_batches(result.records, LOG_SCHEMA))

    async def read_stored(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> FetchResult[list[RecordBatch]]:
        """Read like ``read``, but return whole batches: those of the tail as they lie in the journal, and row groups of
        the history; at least one if there is any.
        """

        async def of_tail(wanted: Wanted) -> Slice[RecordBatch]:
            at = wanted.start
            frames = log.index.frames_by_bytes(at, wanted.end, wanted.max_bytes)
            num_bytes = sum(frame.inflated_bytes for frame in frames)
            if num_bytes > wanted.max_bytes and (wanted.may_be_empty or len(frames) > 1):
                num_bytes -= frames.pop().inflated_bytes
            if not frames:
                return Slice([], 0, 0, at)
            batches = await self._in_thread(lambda: self._slices.read_stored_frames(frames))
            count = sum(frame.end_offset - max(at, frame.base_offset) for frame in frames if frame.has_records)
            return Slice(batches, count, num_bytes, frames[-1].end_offset)

        of_segment = self._slices.read_stored_segment
        return await self._read(topic, log, offset, of_segment, of_tail, max_bytes, min_bytes, isolation)

    async def read_batches(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> FetchResult[list[Buffer]]:
        """Read like ``read``, but return the bytes of Kafka's record batches; the first one is whole, whatever its
        size.

        If there is no record up to the next offset, a batch without records says so: Kafka's consumers continue after
        the last batch that they have seen.
        """
        epochs = log.state.leader_epochs.entries

        async def of_tail(wanted: Wanted) -> Slice[Buffer]:
            locations = log.index.locations_by_length(wanted.start, wanted.end, wanted.max_bytes)
            if wanted.may_be_empty and locations[0].length - HEADER_BYTES > wanted.max_bytes:
                return Slice([], 0, 0, wanted.start)
            return await self._in_thread(lambda: self._slices.read_frame_batches(locations, wanted))

        of_segment = functools.partial(self._slices.read_segment_batches, epochs=epochs)
        result = await self._read(topic, log, offset, of_segment, of_tail, max_bytes, min_bytes, isolation)
        if not result.records and result.next_offset > offset:
            records = [gap_batch(offset, result.next_offset, epochs)]
            return dataclasses.replace(result, records=records, num_bytes=len(records[0]))
        return result

    async def _read(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        of_segment: SegmentRead[C],
        of_tail: Callable[[Wanted], Awaitable[Slice[C]]],
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation,
        where: Where | None = None,
    ) -> FetchResult[list[C]]:
        """Read slices from ``offset`` on. ``of_segment`` and ``of_tail`` return them in the requested form."""
        require_in_range(log, offset)
        unsearched = SEARCHED_BYTES_MAX

        async def next_slice(at: int, max_bytes: int, *, may_be_empty: bool) -> Slice[C]:
            search = None if where is None else Search(where, unsearched)
            end = _read_end(log, at, isolation)
            wanted = Wanted(at, end, max_bytes, may_be_empty, log.log_start_offset, search)
            if log.sealed_offset <= at < wanted.end:
                return await of_tail(wanted)
            return await self._history_slice(topic, log, wanted, of_segment)

        taken: list[C] = []
        count = num_bytes = 0
        at = offset
        while True:
            if taken and log.is_missing(at):
                break  # the next fetch reports the error
            piece = await self._again_if_moved(
                topic, functools.partial(next_slice, at, max_bytes - num_bytes, may_be_empty=bool(taken))
            )
            if piece.batches:
                taken += piece.batches
                count += piece.count
                num_bytes += piece.num_bytes
            elif piece.next_offset == at and at < log.readable_end(isolation):
                if taken:
                    break  # the next record does not fit
                raise CorruptionError(f"Neither a record nor the next segment is found at offset {at} of {log}.")
            at = piece.next_offset
            unsearched -= piece.searched_bytes
            if unsearched <= 0:
                break
            if at >= log.readable_end(isolation) or num_bytes >= min(max(1, min_bytes), max_bytes):
                break
            if piece.is_full and num_bytes >= _FULL_PART * max_bytes:
                break  # another slice would have little room and cost the same
        return FetchResult(
            taken, count, num_bytes, at, log.log_start_offset, log.high_watermark, log.last_stable_offset
        )

    async def offset_for_timestamp(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the smallest offset whose record has a timestamp of at least ``timestamp_ms``, and that timestamp."""
        log = topic.partition(partition)
        isolation = Isolation.READ_UNCOMMITTED

        async def find() -> tuple[int, int] | None:
            log.require_served()
            start, sealed, end = log.log_start_offset, log.sealed_offset, log.readable_end(isolation)
            segments = [
                s for s in log.segments if s.num_records and s.end_offset > start and s.max_timestamp_ms >= timestamp_ms
            ]
            tail = list(log.index.frames_since(max(start, sealed), end, timestamp_ms))
            found = await self._in_thread(
                lambda: self._slices.find_timestamp(topic.table.files, segments, tail, start, sealed, timestamp_ms)
            )
            # A record of that time may be among the missing ones before it.
            if log.missing and (found is None or found[0] >= log.missing[0].start):
                log.read_end(log.missing[0].start, isolation)
            return found

        return await self._again_if_moved(topic, find)

    async def offset_of_max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record with the partition's largest timestamp; None without any
        record.
        """
        log = topic.partition(partition)

        async def find() -> int | None:
            log.require_served()
            start, sealed, end = log.log_start_offset, log.sealed_offset, log.high_watermark
            segments = [s for s in log.segments if s.num_records and s.end_offset > start]
            tail = [frame for frame in log.index.frames(max(start, sealed), end) if frame.has_records]
            return await self._in_thread(
                lambda: self._slices.max_timestamp(topic.table.files, segments, tail, start, sealed)
            )

        largest = await self._again_if_moved(topic, find)
        if largest is None:
            return None
        found = await self.offset_for_timestamp(topic, partition, largest)
        # Row groups of other writers have their microseconds rounded up, their records have them rounded down.
        return found or await self.offset_for_timestamp(topic, partition, largest - 1)

    async def count_records(self, topic: Topic, log: PartitionLog, start: int, end: int) -> int:
        """Return the number of records that exist in [start, end). Offsets after the history that this broker knows
        count as one record each. Offsets are read only from a segment with gaps that contains ``start``.
        """

        async def count() -> int:
            whole, rest = log.segments.records_between(start, end)
            sealed = topic.snapshot.partitions[log.partition].sealed
            whole += max(0, end - max(start, sealed))
            if rest is None:
                return whole
            files, segment = topic.table.files, rest
            return whole + await self._in_thread(lambda: self._slices.count_from(files, segment, start))

        return await self._again_if_moved(topic, count)

    # ---- on the event loop ------------------------------------------------------------------------------------------

    async def _history_slice(self, topic: Topic, log: PartitionLog, wanted: Wanted, read: SegmentRead[C]) -> Slice[C]:
        """Return the slice that ``read`` takes from one row group; an empty one at the end of the history."""
        if wanted.start >= wanted.end:
            return Slice([], 0, 0, wanted.start)
        if topic.snapshot.partitions[log.partition].sealed < log.sealed_offset:
            await self._refresh(topic)  # the previous leader has sealed it
        sealed = log.sealed_offset
        segments = log.segments.files
        at = bisect_right(segments, wanted.start, key=lambda s: s.end_offset)
        while at < len(segments) and not segments[at].num_records:
            at += 1
        if at == len(segments) or segments[at].base_offset >= min(sealed, wanted.end):
            # No record is left up to this point.
            return Slice([], 0, 0, min(sealed, wanted.end))
        segment = segments[at]
        following = min(sealed, segments[at + 1].base_offset) if at + 1 < len(segments) else sealed
        wanted = dataclasses.replace(wanted, end=min(sealed, wanted.end))
        files = topic.table.files
        try:
            found = await self._in_thread(lambda: read(files, segment, following, wanted))
        except (CorruptionError, FileNotFoundError) as error:
            # The refresh that follows forgets a file that a job has replaced, together with its segment.
            log.segments.unreadable[segment.path] = str(error)
            raise
        log.segments.unreadable.pop(segment.path, None)
        return found

    async def _again_if_moved(self, topic: Topic, read: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return await read()
            except JournalRangeFreedError:
                if attempt == _ATTEMPTS - 1:
                    raise
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS - 1:
                    raise CorruptionError(
                        f"Topic {topic.name!r}: the Delta log names {error.filename}, which is not on disk."
                    ) from error
                await self._refresh(topic)
            except OSError as error:
                raise StorageError(f"Cannot read topic {topic.name!r}: {error}. Check the disk; try again.") from error
        raise AssertionError("unreachable")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _read_end(log: PartitionLog, offset: int, isolation: Isolation) -> int:
    """Return the offset at which readers stop. Raises OffsetOutOfRangeError if ``offset`` was deleted meanwhile."""
    if offset < log.log_start_offset:
        require_in_range(log, offset)
    return log.read_end(offset, isolation)


def require_in_range(log: PartitionLog, offset: int) -> None:
    """Raise OffsetOutOfRangeError unless readers may ask for ``offset``.

    QuarantinedError comes first: the ends of a log in quarantine may be unknown, and a consumer that gets an
    out-of-range error goes to one of them.
    """
    log.require_served()
    # The response also contains the end offset.
    log.require_leader().require_settled()
    if not log.log_start_offset <= offset <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"Offset {offset} of {log.topic}-{log.partition} is out of range: "
            f"offsets {log.log_start_offset} to {log.high_watermark} can be read.",
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
