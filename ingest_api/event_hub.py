"""The hub of event streams: records are read and encoded once for all streams that read the same in the same form.

A broadcast waits at the ends of its partitions, as a fetch does, and keeps its newest chunks. Invariants: chunk
``number`` begins at the position at which chunk ``number - 1`` ends, so a stream whose position is the end of a chunk
continues with the next one, whichever broadcast wrote the events before; a broadcast runs while it has a stream; all
broadcasts together keep at most ``_KEPT_BYTES``, and each at least its newest chunk.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from ingest_api.event_chunks import Chunk, Reading, read_chunks
from ingest_api.event_position import Offsets, StreamPartition
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.topics.ids import require_topic_id
from logstore.errors import LogStoreError, ThrottledError
from logstore.limits import FETCH_WAIT_MS_MAX, MIB
from logstore.log.partition_log import PartitionLog
from logstore.observability import EVENT_STREAMS, THROTTLED

log = structlog.stdlib.get_logger(__name__)

# These bytes of chunks are kept for slower streams, by one broadcast and by all.
_KEPT_OF_ONE_BYTES: Final = MIB
_KEPT_BYTES: Final = 64 * MIB
# In addition to its bytes, an event costs its place and its key.
_EVENT_OVERHEAD_BYTES: Final = 128
# A write to a client takes about 25 µs. With a pause of four times that after each round, the share of all streams in
# the event loop does not grow with their number; a record waits for at most the longest pause.
_PAUSE_OF_STREAM_S: Final = 0.0001
_PAUSE_MAX_S: Final = 0.1

Wake = Callable[[], None]


class EventHub:
    """The streams and broadcasts of a store. ``streams_max`` is the setting ``max.event.streams``."""

    def __init__(self, broker: Broker, streams_max: int) -> None:
        self.broker = broker
        self._streams_max = streams_max
        self._streams = 0
        self._broadcasts: dict[Reading, Broadcast] = {}

    def open(self) -> None:
        """Count one more stream. Raises ThrottledError if all are taken. ``close`` counts it down."""
        if self._streams >= self._streams_max:
            THROTTLED.labels("event_streams").inc()
            raise ThrottledError(
                f"All {self._streams_max} streams of events are taken (max.event.streams): try later, or raise it."
            )
        self._streams += 1
        EVENT_STREAMS.set(self._streams)

    def close(self) -> None:
        self._streams -= 1
        EVENT_STREAMS.set(self._streams)

    def join(self, reading: Reading, wake: Wake, offsets: Offsets) -> "Broadcast":
        """Return the broadcast of ``reading``, which calls ``wake`` when it has more, or has ended, until ``leave``.

        A new one begins at ``offsets`` in partitions that other brokers lead.

        Raises UnknownTopicError, UnknownTopicIdError, UnknownPartitionError.
        """
        broadcast = self._broadcasts.get(reading)
        if broadcast is None or broadcast.has_ended:
            broadcast = self._broadcasts[reading] = Broadcast(self, reading, offsets)
        broadcast.listeners.add(wake)
        return broadcast

    def leave(self, broadcast: "Broadcast", wake: Wake) -> None:
        broadcast.listeners.discard(wake)
        if not broadcast.listeners:
            broadcast.stop()
            if self._broadcasts.get(broadcast.reading) is broadcast:
                del self._broadcasts[broadcast.reading]

    def log_of(self, partition: StreamPartition) -> PartitionLog:
        """Return the log of a partition. Raises UnknownTopicError, UnknownTopicIdError, UnknownPartitionError."""
        topic = self.broker.topics.served.topic(INTERNAL, partition.topic)
        require_topic_id(topic, partition.topic_id)
        return topic.partition(partition.partition)

    @property
    def pause_s(self) -> float:
        """The seconds for which a broadcast collects records after each round."""
        return min(_PAUSE_OF_STREAM_S * self._streams, _PAUSE_MAX_S)

    @property
    def kept_bytes(self) -> int:
        """The bytes of chunks that each broadcast may keep."""
        return min(_KEPT_OF_ONE_BYTES, _KEPT_BYTES // max(1, len(self._broadcasts)))


class Broadcast:
    """``end`` is the position behind chunk ``number``, the newest. It begins at the ends of the logs, and at
    ``offsets`` in partitions that other brokers lead.
    """

    def __init__(self, hub: EventHub, reading: Reading, offsets: Offsets) -> None:
        self.reading = reading
        self.listeners: set[Wake] = set()
        self._hub = hub
        self._logs = [hub.log_of(one) for one in reading.partitions]
        ends = zip(self._logs, self._readable_ends(), offsets, strict=True)
        self.end: Offsets = tuple(end if log.is_leader else offset for log, end, offset in ends)
        self.number = 0
        self._chunks: dict[int, Chunk] = {}
        self._kept_bytes = 0
        self._running = asyncio.get_running_loop().create_task(self._run())
        # Streams ask for the error; without streams nobody needs it.
        self._running.add_done_callback(lambda task: task.cancelled() or task.exception())

    def chunk(self, number: int) -> Chunk | None:
        """Return the chunk with that number; None if it does not exist yet, or is no longer kept."""
        return self._chunks.get(number)

    @property
    def has_ended(self) -> bool:
        return self._running.done()

    def require_running(self) -> None:
        """Raise the error that it has ended with."""
        if self._running.done():
            self._running.result()

    def stop(self) -> None:
        self._running.cancel()

    async def _run(self) -> None:
        try:
            await self._broadcast()
        except LogStoreError:
            raise  # The streams report the error to their clients.
        except Exception:
            log.exception("events.broadcast_failed")
            raise
        finally:
            # The streams are woken when this task is done.
            asyncio.get_running_loop().call_soon(self._wake)

    async def _broadcast(self) -> None:
        if not self.reading.partitions:  # Nothing comes until its streams join another broadcast.
            await asyncio.get_running_loop().create_future()
        for turn in range(2**62):
            reading = read_chunks(
                self._hub.broker, INTERNAL, self.reading, self.end, max_wait_ms=FETCH_WAIT_MS_MAX, turn=turn
            )
            async with contextlib.aclosing(reading) as chunks:
                async for chunk in chunks:
                    self._publish(chunk)
                    await asyncio.sleep(0)  # Other tasks have their turn.
            if self.end == self._readable_ends():
                await asyncio.sleep(self._hub.pause_s)

    def _publish(self, chunk: Chunk) -> None:
        self.number += 1
        self._chunks[self.number] = chunk
        self.end = chunk.offsets
        self._kept_bytes += _cost(chunk)
        while self._kept_bytes > self._hub.kept_bytes and len(self._chunks) > 1:
            oldest = next(iter(self._chunks))
            self._kept_bytes -= _cost(self._chunks.pop(oldest))
        self._wake()

    def _wake(self) -> None:
        for wake in tuple(self.listeners):
            wake()

    def _readable_ends(self) -> Offsets:
        return tuple(log.readable_end(self.reading.isolation) for log in self._logs)


def _cost(chunk: Chunk) -> int:
    return len(chunk.data) + chunk.count * _EVENT_OVERHEAD_BYTES
