"""The state of the running application, and the function by which a route gets it."""

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from consumer_offsets.group_coordinator import GroupCoordinator
from ingest_api.event_hub import EventHub
from logstore.broker.broker import Broker
from logstore.errors import BrokerNotReadyError
from logstore.settings import Settings
from logstore.threads import threads

# Smaller work (a millisecond or two of decoding) stays on the event loop: two threads that want the GIL wait for each
# other, up to its switch interval each time that one of them has released it.
WORKER_THREAD_BYTES_MIN = 512 * 1024

T = TypeVar("T")


class ApiState:
    """One broker, the consumer groups on it, and the bounds around them.

    ``stopping`` is set when the server begins to shut down: long polls then respond at once. ``requests`` and
    ``answers`` have separate bounds, so that slow readers never stop producers.
    """

    def __init__(self, settings: Settings, broker: Broker, groups: GroupCoordinator) -> None:
        self.settings = settings
        self.broker = broker
        self.groups = groups
        self.stopping = asyncio.Event()
        self.events = EventHub(broker, settings.max_event_streams)
        self.began = broker.clock.monotonic()
        self.requests, self.answers = broker.admission.requests, broker.admission.answers
        # It has its own threads: a burst of large bodies must not take the threads that the broker reads with.
        self._codecs = threads().pool(max(2, os.cpu_count() or 2), "codec")

    async def work(self, size: int, function: Callable[[], T]) -> T:
        """Run a pure function over ``size`` bytes, in a worker thread if they are many."""
        if size < WORKER_THREAD_BYTES_MIN:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._codecs, function)

    @property
    def not_ready_reason(self) -> str | None:
        """The reason why appends are refused; None while they are accepted."""
        return "the server is shutting down" if self.stopping.is_set() else self.broker.not_ready_reason

    def close(self) -> None:
        self._codecs.shutdown(wait=False, cancel_futures=True)


def api_state(request: Request) -> ApiState:
    """Return the state of the request's application. Raises BrokerNotReadyError while the store starts."""
    state = request.app.state.api
    if state is None:
        raise BrokerNotReadyError("Not now: the store is starting. Try again in a few seconds.")
    assert isinstance(state, ApiState)
    return state
