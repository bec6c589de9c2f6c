"""Reads the partitions of a consumer instance from their positions on."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from consumer_offsets.groups.instance_record import InstanceConfig
from consumer_offsets.instances.instance_home import Polled, PolledPartition
from consumer_offsets.instances.instance_positions import InstancePositions
from consumer_offsets.instances.instance_starts import Position
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition, Gone
from logstore.errors import LogStoreError
from logstore.log.isolation import Isolation
from logstore.protocol.members.identity import TopicPartition

_PARTITION_BYTES_MAX: Final = 4 << 20

#: Begins again where a partition cannot be read further, and returns the error if the client has to know it.
Mend = Callable[[TopicPartition, Position, LogStoreError], Coroutine[Any, Any, LogStoreError | None]]


class InstanceReader:
    def __init__(self, broker: Broker, positions: InstancePositions) -> None:
        self._broker = broker
        self._positions = positions

    async def read(
        self,
        context: RequestContext,
        config: InstanceConfig,
        wait_ms: int,
        max_bytes: int,
        woken: asyncio.Event,
        gone: Gone,
        mend: Mend,
    ) -> Polled | None:
        """Read records; none if something has changed (``woken``) or nothing came. None if no response is wanted any
        more.
        """
        positions = self._positions.in_turn()
        wanted_no_more = was_woken = False

        async def interrupted() -> None:
            nonlocal wanted_no_more, was_woken
            leaving = asyncio.ensure_future(gone())
            waking = asyncio.ensure_future(woken.wait())
            try:
                await asyncio.wait((leaving, waking), return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    leaving.result()
                    wanted_no_more = True
                else:
                    was_woken = True
            finally:
                for task in (leaving, waking):
                    task.cancel()
                await asyncio.gather(leaving, waking, return_exceptions=True)

        if not positions:
            with suppress(TimeoutError):
                await asyncio.wait_for(interrupted(), wait_ms / 1000)
            return None if wanted_no_more else Polled([], None)
        limits = FetchLimits(
            max_bytes,
            min(max_bytes, _PARTITION_BYTES_MAX),
            max(1, config.fetch_min_bytes),
            wait_ms,
            fill=False,
            isolation=Isolation(config.isolation),
        )
        wanted = [FetchPartition(*at, position.offset, position.topic_id) for at, position in positions]
        fetched = await self._broker.fetch.records(context.answered_here(), wanted, limits, interrupted, copies=2.5)
        try:
            partitions, moved, num_bytes = [], [], 0
            failure: LogStoreError | None = None
            for place, answer in fetched.answers.items():
                at, position = positions[place]
                if isinstance(answer, LogStoreError):
                    failure = failure or await mend(at, position, answer)
                    continue
                moved.append((at, position, answer.next_offset, bool(answer.count)))
                num_bytes += answer.num_bytes
                if answer.count:
                    string_keys = self._broker.topics.served.topic(INTERNAL, at.topic).config.string_keys
                    partitions.append(PolledPartition(*at, answer.records, string_keys))
            if failure is not None and not partitions:
                raise failure
            if not partitions:
                self._positions.move(moved)
            if not partitions or (was_woken and num_bytes < min(config.fetch_min_bytes, max_bytes)):
                fetched.reservation.release()
                return None if wanted_no_more else Polled([], None)
            return Polled(partitions, fetched.reservation, lambda: self._positions.move(moved))
        except BaseException:
            fetched.reservation.release()
            raise
