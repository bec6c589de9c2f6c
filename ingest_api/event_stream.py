"""A stream of Server-Sent Events to one client.

Invariant: ``offsets`` is the position up to which everything that the client asked for was handed to its connection,
once and in order. A stream either follows a broadcast, whose chunks are the same bytes for all, or reads by itself up
to the end of one of the broadcast's chunks: at the start, and when the client is so slow that the broadcast no longer
keeps the next chunk. While the connection accepts nothing, a stream reads nothing: it holds the piece that it is
sending.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingest_api.bodies import CONNECTION, answer_wanted
from ingest_api.errors import EVENT_RETRY_MS, EVENT_STREAM
from ingest_api.event_chunks import Chunk, Reading, comment, error_event, id_event, read_chunks
from ingest_api.event_hub import Broadcast, EventHub
from ingest_api.event_position import Offsets, Partitions, StreamPartition, position_text
from ingest_api.request_log import STREAM
from ingest_api.state import api_state
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.quotas import QuotaKind
from logstore.entropy import random_int
from logstore.errors import LogStoreError
from logstore.observability import EVENT_STREAMS_CUT, EVENTS_SENT

#: Key in the scope of a HEAD request that is handled as a GET.
HEAD_ONLY: Final = "logstore.head_only"

# The stream waits this long for room for the response before it checks that its client is still connected.
_ROOM_WAIT_MS: Final = 1_000
# When the store stops, a client that reads nothing is cut after this time.
_STOP_SECONDS: Final = 2.0


class Selection(Protocol):
    """The partitions of a stream, which may change while it runs."""

    def partitions(self) -> Partitions:
        """Return the partitions, in the same object as long as they do not change."""
        ...

    def start(self, partition: StreamPartition) -> int:
        """Return the offset at which a partition begins that was added later."""
        ...


class EventStream:
    """``send`` hands bytes to the connection, and waits while the connection accepts none."""

    def __init__(
        self,
        hub: EventHub,
        context: RequestContext,
        selection: Selection,
        reading: Reading,
        offsets: Offsets,
        *,
        key: bytes | None,
        keepalive_s: float,
    ) -> None:
        self.offsets = offsets
        self._hub = hub
        self._context = context
        self._selection = selection
        self._reading = reading
        self._key = key
        self._keepalive_s = keepalive_s
        self._send: Callable[[bytes], Awaitable[None]]
        self._loop = asyncio.get_running_loop()
        # The broadcast's chunk at whose end the stream is; None while it reads by itself.
        self._number: int | None = None
        self._sleeping: asyncio.Future[None] | None = None
        self._last_sent = self._loop.time()
        self._has_ended = False

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send events until ``end``. Raises the error that ends the stream."""
        self._send = send
        broadcast = self._hub.join(self._reading, self._wake, self.offsets)
        timer = self._loop.call_later(self._keepalive_s, self._wake)
        try:
            await self._send_bytes(b"retry: %d\n" % random_int(*EVENT_RETRY_MS) + self._id_event())
            while not self._has_ended:
                self._require_permission()
                if self._selection.partitions() is not self._reading.partitions:
                    self._hub.leave(broadcast, self._wake)
                    self._move()
                    broadcast = self._hub.join(self._reading, self._wake, self.offsets)
                if await (self._catch_up(broadcast) if self._number is None else self._follow(broadcast)):
                    continue
                broadcast.require_running()
                if (silent := self._loop.time() - self._last_sent) >= self._keepalive_s:
                    # A filter moves the position without an event.
                    await self._send_bytes(comment("keep-alive") if self._key is None else self._id_event())
                    continue
                timer.cancel()
                timer = self._loop.call_later(self._keepalive_s - silent, self._wake)
                await self._sleep()
        finally:
            timer.cancel()
            self._hub.leave(broadcast, self._wake)

    def position(self) -> dict[StreamPartition, int]:
        """Return the next offset of each partition."""
        return dict(zip(self._reading.partitions, self.offsets, strict=True))

    def look_again(self) -> None:
        """Look at the selection again, which may have changed."""
        self._wake()

    def end(self) -> None:
        """Make ``run`` return once the connection has accepted the piece that is being sent."""
        self._has_ended = True
        self._wake()

    async def _follow(self, broadcast: Broadcast) -> bool:
        """Send the broadcast's next chunk, and return whether there was one."""
        assert self._number is not None
        if self._number == broadcast.number:
            return False
        chunk = broadcast.chunk(self._number + 1)
        if chunk is None:
            self._number = None  # The stream was too slow.
            return True
        data = await self._send_chunk(chunk)
        self._number += 1
        throttle_ms = self._hub.broker.admission.charge(self._context, QuotaKind.FETCHED_BYTES, data)
        if throttle_ms:
            await asyncio.sleep(throttle_ms / 1000)
        return True

    async def _catch_up(self, broadcast: Broadcast) -> bool:
        """Read up to the broadcast's newest chunk; return False if the broadcast has to continue first.

        The broadcast may be behind: it may not have reached this position yet.
        """
        number, target = broadcast.number, broadcast.end
        turn = 0
        while any(map(int.__lt__, self.offsets, target)):
            reading = read_chunks(
                self._hub.broker,
                self._context,
                self._reading,
                self.offsets,
                until=target,
                key=self._key,
                max_wait_ms=_ROOM_WAIT_MS,
                turn=turn,
            )
            async with contextlib.aclosing(reading) as chunks:
                async for chunk in chunks:
                    await self._send_chunk(chunk)
                    if self._has_ended:
                        return True
            if self._has_ended:
                return True
            turn += 1
        if self.offsets != target:
            return False
        self._number = number
        return True

    async def _send_chunk(self, chunk: Chunk) -> int:
        """Send a chunk, and return the number of bytes sent."""
        data, count = chunk.data, chunk.count
        if self._key is not None:
            data, count = chunk.events_of(self._key)
        if data:
            await self._send_bytes(data)
            EVENTS_SENT.inc(count)
        self.offsets = chunk.offsets
        return len(data)

    def _move(self) -> None:
        """Continue with the partitions that the selection has now."""
        known = self.position()
        partitions = self._selection.partitions()
        self.offsets = tuple(known[one] if one in known else self._selection.start(one) for one in partitions)
        self._reading = replace(self._reading, partitions=partitions)
        self._number = None

    def _require_permission(self) -> None:
        """Check the permission, which may have been taken away since the last record."""
        for topic in {one.topic: None for one in self._reading.partitions}:
            self._hub.broker.authorizer.require(self._context, Operation.READ, ResourceType.TOPIC, topic)

    def _id_event(self) -> bytes:
        if not self._reading.partitions:
            return comment("no partitions now")
        return id_event(position_text(self._reading.partitions, self.offsets))

    async def _send_bytes(self, data: bytes) -> None:
        await self._send(data)
        self._last_sent = self._loop.time()

    async def _sleep(self) -> None:
        self._sleeping = self._loop.create_future()
        try:
            await self._sleeping
        finally:
            self._sleeping = None

    def _wake(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)


class EventStreamResponse(Response):
    """The response of a ``stream``, which lasts until the client goes, the store stops, or the stream fails.

    It counts the stream down in the hub afterwards.
    """

    def __init__(self, request: Request, hub: EventHub, stream: EventStream, headers: Mapping[str, str]) -> None:
        # A proxy that buffers would hold events back.
        no_buffers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, {**headers, **no_buffers}, EVENT_STREAM)
        del self.headers["content-length"]
        self._request = request
        self._hub = hub
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            last = b"" if HEAD_ONLY in scope else await self._run(scope, send)
            await send({"type": "http.response.body", "body": last})
        finally:
            self._hub.close()

    async def _run(self, scope: Scope, send: Send) -> bytes:
        """Run the stream, and return its last bytes."""
        scope[STREAM] = True
        connection = scope.get(CONNECTION)
        stopping = api_state(self._request).stopping
        loop = asyncio.get_running_loop()
        cutting: list[asyncio.TimerHandle] = []

        def end(_: "asyncio.Task[None]") -> None:
            self._stream.end()
            if stopping.is_set() and connection is not None:
                cutting.append(loop.call_later(_STOP_SECONDS, connection.cut))

        async def send_piece(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        watching = loop.create_task(answer_wanted(self._request))
        watching.add_done_callback(end)
        try:
            await self._stream.run(send_piece)
        except LogStoreError as error:
            return error_event(error)
        finally:
            watching.remove_done_callback(end)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for timer in cutting:
                timer.cancel()
            if connection is not None and connection.was_cut:
                EVENT_STREAMS_CUT.inc()
        return comment("the store is stopping: connect again") if stopping.is_set() else b""
