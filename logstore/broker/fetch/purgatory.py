"""Kafka's purgatory of fetches: the long poll of a fetch waits here for records of any of its partitions.

Invariant: a fetch that waits holds no records, because the indexes of its partitions know the number of bytes. It is
woken when a partition grows, is closed or quarantined, and when its principal may have lost the permission to read.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from logstore.broker.authorizer import Authorizer, AuthorizerView, Operation, ResourceType, refusal
from logstore.broker.context import RequestContext
from logstore.errors import LogStoreError
from logstore.limits import FETCH_BYTES_MAX, RECORD_OVERHEAD_BYTES
from logstore.log.delayed_fetch import DelayedFetch, Source, end_of_wait
from logstore.log.isolation import Isolation
from logstore.log.log_reader import require_in_range
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.where.evaluation import Where

#: Called when a fetch has to wait. It returns when the response is wanted at once, and raises when the client has gone.
Gone = Callable[[], Coroutine[object, object, None]]


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of a fetch: how many bytes to wait for, and how long; how many to take at most, in all and of one
    partition.

    Without ``fill`` the records end with the first piece (a row group, a run of the tail) that reaches ``min_bytes``.
    With ``where`` only the records that it selects are returned.
    """

    max_bytes: int
    max_partition_bytes: int
    min_bytes: int
    max_wait_ms: int
    fill: bool = True
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    where: Where | None = None


class WantedPartition:
    """A partition of a fetch, and the bytes counted so far."""

    __slots__ = ("_counted_to", "_max_bytes", "error", "isolation", "log", "may_grow", "num_bytes", "offset", "topic")

    def __init__(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        max_bytes: int = FETCH_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self.isolation = isolation
        self._max_bytes = max_bytes
        self.log = log
        self.offset = offset
        self.num_bytes = 0
        self.error: LogStoreError | None = None
        #: True if this fetch would read more records if more came.
        self.may_grow = True
        self._counted_to = offset

    def max_bytes_of(self, limits: FetchLimits) -> int:
        """Return the upper bound of bytes that are wanted from the partition."""
        return min(self._max_bytes, limits.max_partition_bytes)

    def count(self) -> None:
        """Count the new records; set ``error`` if the partition cannot be read."""
        if not self.may_have_changed:
            return
        log = self.log
        try:
            log.require_open()
            leadership = log.require_leader()
            if self.offset > log.high_watermark:
                leadership.require_settled()
            require_in_range(log, self.offset)
            end = log.read_end(self.offset, self.isolation)
        except LogStoreError as error:
            self.error = error
            return
        self.may_grow = end == log.readable_end(self.isolation)
        if end > self._counted_to:
            self.num_bytes += log.stored_bytes(self._counted_to, end)
            self._counted_to = end

    @property
    def may_have_changed(self) -> bool:
        """True if records may have come, or the partition may have become unreadable; ``count`` finds out."""
        return self.has_news or self.log.is_closed

    @property
    def has_news(self) -> bool:
        """True if there are records to read or an error to return.

        A leader that is not settled has an error: its end offset may be lower than one that a client has seen (C9).
        """
        log = self.log
        return (
            self.offset != log.readable_end(self.isolation)
            or self.error is not None
            or log.quarantined is not None
            or not log.is_settled
        )

    def held_bytes_max(self, max_bytes: int) -> int:
        """Return the number of bytes that a read of up to ``max_bytes`` may hold now."""
        self.count()
        log = self.log
        if self.error is not None or self._counted_to == self.offset:
            return 0
        if self.offset < log.sealed_offset:
            return max_bytes  # the inflated size of sealed records is not known
        (first,) = itertools.islice(log.index.frames(self.offset, self._counted_to), 1)
        found = (
            log.index.inflated_bytes(self.offset, self._counted_to)
            + (self._counted_to - self.offset) * RECORD_OVERHEAD_BYTES
        )
        # The first batch is read whatever its size.
        return max(first.inflated_bytes, min(max_bytes, found))


class Permissions:
    """The permission of one fetch to read its topics. A fetch checks it each time that it looks for records, because it
    may have been revoked.
    """

    def __init__(self, authorizer: Authorizer, context: RequestContext) -> None:
        self._authorizer = authorizer
        self._context = context
        # The view that allowed all topics.
        self._allowing: AuthorizerView | None = None

    @property
    def are_all_given(self) -> bool:
        """True if the current view refused nothing."""
        return self._allowing is self._authorizer.view

    def refusals(self, topics: Iterable[str]) -> dict[str, LogStoreError]:
        """Return the error of each topic that may not be read."""
        names = list(dict.fromkeys(topics))
        allowed = self._authorizer.authorize(self._context, Operation.READ, ResourceType.TOPIC, names)
        if len(allowed) == len(names):
            self._allowing = self._authorizer.view
            return {}
        refused = dict.fromkeys(names)
        for name in allowed:
            del refused[name]
        return {name: refusal(self._context, Operation.READ, ResourceType.TOPIC, name) for name in refused}

    def add_reader(self, woken: "asyncio.Future[bool]") -> None:
        """Set ``woken`` to true when ``refusals`` may have changed, until ``remove_reader``."""
        self._authorizer.add_reader(woken)

    def remove_reader(self, woken: "asyncio.Future[bool]") -> None:
        self._authorizer.remove_reader(woken)


class Patience:
    """Waits until ``max_wait_ms`` are over, or ``gone`` has ended."""

    def __init__(self, max_wait_ms: int, gone: Gone | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + max_wait_ms / 1000
        self._gone = gone
        self._going: asyncio.Task[None] | None = None

    async def until(self, sources: Sequence[Source], news: "asyncio.Future[bool] | None" = None) -> bool:
        """Wait for news of the ``sources``, or for ``news``. Return True if it comes before patience ends. Raises the
        errors of ``gone``.
        """
        now = self._loop.time()
        if now >= self._end or (self._going is not None and self._going.done()):
            return False
        if self._going is None and self._gone is not None:
            self._going = self._loop.create_task(self._gone())
        delayed = DelayedFetch(sources, end_of_wait(now, self._end), news)
        if self._going is not None:
            self._going.add_done_callback(delayed.expire)
        try:
            came = await delayed.news
        finally:
            delayed.cancel()
            if self._going is not None:
                self._going.remove_done_callback(delayed.expire)
        if self._going is not None and self._going.done():
            self._going.result()
            return False
        return came

    async def end(self) -> None:
        """Stop listening for the client."""
        if self._going is not None:
            self._going.cancel()
            await asyncio.gather(self._going, return_exceptions=True)


async def wait_for_records(
    wanted: Sequence[WantedPartition], limits: FetchLimits, patience: Patience, permissions: Permissions
) -> None:
    """Wait until there are enough records, one of ``wanted`` cannot or may not be read, or patience ends."""
    while not refuse(wanted, permissions) and not _is_enough(wanted, limits):
        if not await patience.until([permissions, *(one.log for one in wanted if one.may_grow)]):
            return


def refuse(wanted: Sequence[WantedPartition], permissions: Permissions) -> bool:
    """Set the ``error`` of each of ``wanted`` that may not be read. Return True if there is one."""
    if permissions.are_all_given:
        return False
    refusals = permissions.refusals(one.topic.name for one in wanted)
    for one in wanted if refusals else ():
        one.error = refusals.get(one.topic.name) or one.error
    return bool(refusals)


def _is_enough(wanted: Sequence[WantedPartition], limits: FetchLimits) -> bool:
    enough = min(max(1, limits.min_bytes), limits.max_bytes)
    total = 0
    failed = may_grow = False
    for one in wanted:
        one.count()
        if one.error is not None:
            failed = True
            continue
        max_bytes = one.max_bytes_of(limits)
        total += min(one.num_bytes, max_bytes)
        may_grow |= one.may_grow and one.num_bytes < max_bytes
        if total >= enough:
            return True
    # If no partition may grow, later records would not be read either.
    return failed or not may_grow
