"""The high watermark of a partition: everything below it is durable on all in-sync replicas.

Readers stop at the high watermark, and an append with acks=all is acknowledged when it reaches the end of the append.
So both wait here. The leader moves it (``Leadership.advance``). Invariant: it falls only when the end of the log is
truncated, and it never falls below an append that was acknowledged.
"""

import asyncio

from logstore.log.acknowledgements import AcknowledgementQueue


class HighWatermark:
    __slots__ = ("_readers", "appends", "offset")

    def __init__(self) -> None:
        self.offset = 0
        #: The appends with acks=all that are not acknowledged yet.
        self.appends = AcknowledgementQueue()
        # A dict, because each of a thousand waiting readers comes and goes alone, and they are woken in their order.
        self._readers: dict[asyncio.Future[bool], None] = {}

    def advance(self, offset: int) -> None:
        """Acknowledge the appends below ``offset``, which is durable on all in-sync replicas, and wake readers."""
        if offset > self.offset:
            self.offset = offset
            self.wake_readers()
            self.appends.reach(offset)

    def truncate(self, offset: int) -> None:
        """Lower the high watermark, because the records from ``offset`` on are dropped."""
        self.offset = min(self.offset, offset)

    def add_reader(self, woken: "asyncio.Future[bool]") -> None:
        """Let the next ``wake_readers`` set ``woken`` to true, unless ``remove_reader`` comes first."""
        self._readers[woken] = None

    def remove_reader(self, woken: "asyncio.Future[bool]") -> None:
        self._readers.pop(woken, None)

    def wake_readers(self) -> None:
        """Let waiting readers look again: they see more records, or an error."""
        if not self._readers:
            return
        readers, self._readers = self._readers, {}
        for woken in readers:
            if not woken.done():  # another partition has woken it
                woken.set_result(True)
