"""Clients of streams of Server-Sent Events: the parser of the specification, and a client that reconnects."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Event:
    """An event; ``last_id`` is the id that the client would send if it reconnected after this event."""

    kind: str
    data: str
    last_id: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class EventParser:
    """The parser of WHATWG's HTML, section 9.2.6: bytes in, in any pieces, and the events that a browser would dispatch
    out.
    """

    last_id: str = ""
    retry_ms: int | None = None
    comments: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _data: list[str] = field(default_factory=list)
    _kind: str = ""
    _id: str | None = None

    def feed(self, piece: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            assert b"\r" not in line, line
            if (event := self._line(line.decode())) is not None:
                yield event

    def _line(self, line: str) -> Event | None:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "":
                    self.comments.append(value)
                case "id":
                    self._id = value
                case "data":
                    self._data.append(value)
                case "event":
                    self._kind = value
                case "retry":
                    self.retry_ms = int(value)
                case _:
                    raise AssertionError(f"no field of an event: {line!r}")
            return None
        if self._id is not None:
            self.last_id, self._id = self._id, None
        data, kind = "\n".join(self._data), self._kind or "message"
        has_data = bool(self._data)
        self._data, self._kind = [], ""
        return Event(kind, data, self.last_id) if has_data else None


class EventClient:
    """One connection; the next one continues from its ``last_id``."""

    def __init__(self, response: httpx.Response, last_id: str) -> None:
        self.response = response
        self.parser = EventParser(last_id=last_id)
        self._pieces = response.aiter_raw()
        self._events: deque[Event] = deque()
        self._taken_id = last_id

    @property
    def last_id(self) -> str:
        """The id of the last event that was taken, or that of the stream when all were taken."""
        return self._taken_id if self._events else self.parser.last_id

    async def take(self, count: int) -> list[Event]:
        """Return the next events; fewer if the stream ends."""
        while len(self._events) < count and await self._receive():
            pass
        taken = [self._events.popleft() for _ in range(min(count, len(self._events)))]
        self._taken_id = taken[-1].last_id if taken else self._taken_id
        return taken

    async def rest(self) -> list[Event]:
        """Return all events until the stream ends."""
        return await self.take(2**62)

    async def began(self) -> None:
        """Wait until the stream has sent where it begins."""
        await self.until(lambda: self.parser.retry_ms is not None and bool(self.last_id))

    async def until(self, true: Callable[[], bool]) -> None:
        """Receive until the condition holds."""
        while not true():
            assert await self._receive(), "the stream ended before"

    async def _receive(self) -> bool:
        """Take the next piece; return False if the stream has ended, or the server was killed."""
        try:
            async with asyncio.timeout(60):
                self._events.extend(self.parser.feed(await anext(self._pieces)))
        except (StopAsyncIteration, httpx.RemoteProtocolError, httpx.ReadError):
            return False
        return True


@contextlib.asynccontextmanager
async def streaming(
    url: str,
    topic: str = "t",
    *,
    path: str | None = None,
    last_id: str = "",
    accept: str = "text/event-stream",
    **query: str | int,
) -> AsyncIterator[EventClient]:
    """Open a stream of the topic's events, or of those at ``path``; in ``query``, ``from_`` means ``from``."""
    parameters = {name.rstrip("_"): value for name, value in query.items()}
    headers = {"Accept": accept, **({"Last-Event-ID": last_id} if last_id else {})}
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
        http.stream("GET", path or f"/topics/{topic}/events", params=parameters, headers=headers) as response,
    ):
        yield EventClient(response, last_id)
