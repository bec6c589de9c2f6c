"""Small requests that arrive together are appended together.

Columns cost the same for one record as for a hundred, so the requests of one turn of the event loop (those that came
while the last ones were being fsynced, from many connections) become one append. Invariants: each request is answered
with its own places, when they are durable; what one request could be refused for is found before it joins others, so
that they share no more than the fate of the journal; the records of a request stay together in their order.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logstore.broker.broker import Broker, ProducedRange, ProduceResult, Topic, not_acknowledged
from logstore.errors import LogStoreError
from logstore.records.json_decoder import PlainRecord, decode_plain, plain_columns

#: A larger request gains nothing from company.
GATHERED_BYTES_MAX = 4096
_NO_TIMEOUT_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    records: Sequence[PlainRecord]
    result: asyncio.Future[ProduceResult]


class GatheredProduce:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[Topic, list[_Waiting]] = {}
        self._appends: set[asyncio.Task[None]] = set()

    def open(self, topic: Topic, body: bytes) -> Sequence[PlainRecord] | None:
        """The records of a JSON body that may join others; None for one that goes its own way (any mistake, too)."""
        config = topic.config
        if len(body) > min(GATHERED_BYTES_MAX, config.max_message_bytes) or config.compacted:
            return None
        return decode_plain(body) or None

    async def produce(self, topic: Topic, records: Sequence[PlainRecord], *, timeout_ms: int) -> ProduceResult:
        """As ``Broker.produce`` with acks=all."""
        waiting = _Waiting(records, asyncio.get_running_loop().create_future())
        gathered = self._waiting.setdefault(topic, [])
        gathered.append(waiting)
        if len(gathered) == 1:
            # After the requests that this turn of the loop has read.
            asyncio.get_running_loop().call_soon(self._append, topic)
        await asyncio.wait([waiting.result], timeout=timeout_ms / 1000)
        if not waiting.result.done():
            waiting.result.cancel()
            raise not_acknowledged(timeout_ms)
        return waiting.result.result()

    def _append(self, topic: Topic) -> None:
        task = asyncio.create_task(self._append_all(topic, self._waiting.pop(topic)))
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)

    async def _append_all(self, topic: Topic, gathered: list[_Waiting]) -> None:
        try:
            records = plain_columns(list(itertools.chain.from_iterable(waiting.records for waiting in gathered)))
            # Each request waits as long as it wants to: this waits for the journal's word.
            results = _divide(await self._broker.produce(topic, records, timeout_ms=_NO_TIMEOUT_MS), gathered)
        except BaseException as error:  # noqa: BLE001 - of whatever kind, it is theirs
            for waiting in gathered:
                if not waiting.result.done():
                    waiting.result.set_exception(_copy(error))
            return
        for waiting, result in zip(gathered, results, strict=True):
            if not waiting.result.done():
                waiting.result.set_result(result)


def _divide(result: ProduceResult, gathered: Sequence[_Waiting]) -> list[ProduceResult]:
    """What was told of all records, to each request about its own."""
    partitions = np.empty(result.count, np.int32)
    offsets = np.empty(result.count, np.int64)
    for found in result.ranges:
        rows = slice(None) if found.rows is None else found.rows
        partitions[rows] = found.partition
        offsets[rows] = np.arange(found.base_offset, found.base_offset + found.count)
    results = []
    ends = itertools.accumulate(len(waiting.records) for waiting in gathered)
    for first, end in itertools.pairwise(itertools.chain((0,), ends)):
        own = partitions[first:end]
        ranges = []
        for partition in dict.fromkeys(own.tolist()):
            rows = np.flatnonzero(own == partition)
            base_offset = int(offsets[first + rows[0]])
            ranges.append(ProducedRange(partition, base_offset, len(rows), rows))
        results.append(ProduceResult(tuple(ranges), end - first))
    return results


def _copy(error: BaseException) -> BaseException:
    """One for each request: an exception that is raised in several tasks collects all their tracebacks."""
    if isinstance(error, LogStoreError):
        copy = error.__class__.__new__(error.__class__)
        copy.__dict__.update(error.__dict__)
        copy.args = error.args
        return copy
    return error
