"""Links that can be cut, on an event loop in a separate thread, because the bench itself runs on no loop."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.tcp_relay import BOTH, EVERYBODY, Direction, PeerRelay, TcpRelay

T = TypeVar("T")
Relay = TypeVar("Relay", bound=TcpRelay)


class Links:
    """The relays; ``close`` ends them all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._at_end = contextlib.AsyncExitStack()

    def open(self, relay: Relay) -> Relay:
        return self._do(self._at_end.enter_async_context(relay))

    def cut(self, relay: TcpRelay, directions: frozenset[Direction] = BOTH, client: int = EVERYBODY) -> None:
        self._loop.call_soon_threadsafe(relay.cut, directions, client)

    def strand(self, relay: TcpRelay) -> None:
        self._loop.call_soon_threadsafe(relay.strand)

    def swallow(self, relay: TcpRelay) -> None:
        self._loop.call_soon_threadsafe(relay.swallow)

    def delay(self, relay: TcpRelay, seconds: float) -> None:
        self._loop.call_soon_threadsafe(relay.delay, seconds)

    def reset(self, relay: TcpRelay) -> None:
        self._loop.call_soon_threadsafe(relay.reset)

    def heal(self, relay: TcpRelay) -> None:
        self._loop.call_soon_threadsafe(relay.heal)

    def repeat(self, relay: PeerRelay, count: int, chance: random.Random) -> None:
        self._do(relay.repeat(count, chance))

    def close(self) -> None:
        self._do(self._at_end.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)
