"""A fetch of partitions that several brokers lead, this one perhaps among them.

All leaders are asked for what they have. If that is less than ``min_bytes`` in all, they are asked to wait, each for
its part of what is missing: when there is enough, at least one of them has its part. Then all are asked again. Each
leader has an equal part of ``max_bytes``.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from logstore.broker.admission import InFlightBytes
from logstore.broker.fetch.forms import Fetched
from logstore.broker.fetch.purgatory import FetchLimits, Gone, WantedPartition
from logstore.errors import LogStoreError
from logstore.log.log_reader import FetchResult

if TYPE_CHECKING:  # one node asks no other broker
    from logstore.broker.elsewhere.divided_fetch import DividedFetch

T = TypeVar("T")

#: Fetches partitions that this broker leads, or returns their errors.
FetchHere = Callable[[Sequence[WantedPartition | LogStoreError], FetchLimits], Awaitable[Fetched[T]]]


class EverywhereFetch(Generic[T]):
    """``division`` has the partitions of ``found`` that other brokers lead. ``read_remote`` makes records of another
    broker's response, and ``copies`` times their bytes are reserved among ``answers``.
    """

    def __init__(
        self,
        division: "DividedFetch",
        found: Sequence[WantedPartition | LogStoreError],
        limits: FetchLimits,
        read_remote: Callable[[pa.Buffer, int], tuple[T, int]],
        copies: float,
        answers: InFlightBytes,
        threads: Executor,
    ) -> None:
        self._division = division
        self._found = found
        self._limits = limits
        self._read_remote = read_remote
        self._copies = copies
        self._answers = answers
        self._threads = threads
        remotely = {at for asked in division.by_leader.values() for at, _ in asked}
        #: The places of the partitions that this broker answers.
        self._here = [at for at in range(len(found)) if at not in remotely]
        #: By broker, the places of its partitions: the other leaders in their order, then this broker.
        self._places = [[at for at, _ in asked] for asked in division.by_leader.values()]
        if self._here:
            self._places.append(self._here)
        self._share = replace(limits, max_bytes=max(1, limits.max_bytes // len(self._places)))
        self._wanted_at_once = False

    async def fetch(self, here: FetchHere[T], gone: Gone | None) -> Fetched[T]:
        """Return the responses of all. Raises the errors of ``gone``, and ThrottledError."""
        limits = self._limits
        enough = min(max(1, limits.min_bytes), limits.max_bytes)
        loop = asyncio.get_running_loop()
        end = loop.time() + limits.max_wait_ms / 1000
        while True:
            fetched = await self._first_news(self._ask(here, [enough] * len(self._places), 0), None)
            left_ms = math.ceil((end - loop.time()) * 1000)
            had = self._num_bytes(fetched.answers)
            missing = enough - sum(had)
            # A search that found nothing has still moved on.
            if missing <= 0 or left_ms <= 0 or self._wanted_at_once or _has_error(fetched.answers) or limits.where:
                return fetched
            fetched.reservation.release()
            parts = [size + math.ceil(missing / len(self._places)) for size in had]
            fetched = await self._first_news(self._ask(here, parts, left_ms), gone, ends=True)
            now = self._num_bytes(fetched.answers)
            if not fetched.answers or sum(now) >= enough or _has_error(fetched.answers):
                return fetched
            fetched.reservation.release()
            if all(new <= before for new, before in zip(now, had, strict=True)):
                self._wanted_at_once = True  # a leader that has no more to give has answered

    def _ask(
        self, here: FetchHere[T], min_bytes: Sequence[int], max_wait_ms: int
    ) -> list[Coroutine[object, object, Fetched[T]]]:
        asked = [
            self._fetch_away(leader, least, max_wait_ms)
            for leader, least in zip(self._division.by_leader, min_bytes, strict=False)
        ]
        return [*asked, self._fetch_here(here, min_bytes[-1], max_wait_ms)] if self._here else asked

    async def _fetch_here(self, here: FetchHere[T], min_bytes: int, max_wait_ms: int) -> Fetched[T]:
        own = [self._found[at] for at in self._here]
        fetched = await here(own, replace(self._share, max_wait_ms=max_wait_ms, min_bytes=min_bytes))
        return replace(fetched, answers={self._here[at]: answer for at, answer in fetched.answers.items()})

    async def _fetch_away(self, leader: int, min_bytes: int, max_wait_ms: int) -> Fetched[T]:
        reservation = self._answers.reserve()
        try:
            limits = replace(self._share, min_bytes=min_bytes)
            raw = await self._division.fetch(leader, limits, max_wait_ms, reservation)
            answers: dict[int, FetchResult[T] | LogStoreError] = {}
            for at, wanted in self._division.by_leader[leader]:
                one = raw.get(at)
                if isinstance(one, FetchResult):
                    reservation.grow(math.ceil(one.num_bytes * (self._copies - 1)))
                    records, count = await asyncio.get_running_loop().run_in_executor(
                        self._threads, self._read_remote, one.records, wanted.offset
                    )
                    answers[at] = replace(one, records=records, count=count)
                elif one is not None:
                    answers[at] = one
        except BaseException:
            reservation.release()
            raise
        return Fetched(answers, reservation)

    async def _first_news(
        self, sources: Sequence[Coroutine[object, object, Fetched[T]]], gone: Gone | None, *, ends: bool = False
    ) -> Fetched[T]:
        """Collect the responses of all ``sources``. With ``ends``, stop when one source has news. Raises the errors of
        ``gone``.
        """
        fetching = [asyncio.ensure_future(source) for source in sources]
        going = None if gone is None else asyncio.ensure_future(gone())
        waiting: set[asyncio.Future[Any]] = {*fetching} if going is None else {*fetching, going}
        try:
            while not all(one.done() for one in fetching):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if going is not None and going.done():
                    going.result()
                    self._wanted_at_once = True
                    break
                if ends and any(one in done and one.result().answers for one in fetching):
                    break
            return self._collected([one.result() for one in fetching if one.done()])
        except BaseException:
            for one in fetching:
                if one.done() and not one.cancelled() and one.exception() is None:
                    one.result().reservation.release()
            raise
        finally:
            await _end([*fetching, *([] if going is None else [going])])

    def _collected(self, parts: Sequence[Fetched[T]]) -> Fetched[T]:
        """Return the answers of all parts, with one reservation for them."""
        answers = {at: answer for part in parts for at, answer in part.answers.items()}
        whole = self._answers.reserve()
        for part in parts:
            size = part.reservation.size
            part.reservation.release()
            whole.grow(size)
        return Fetched(dict(sorted(answers.items())), whole)

    def _num_bytes(self, answers: Mapping[int, FetchResult[T] | LogStoreError]) -> list[int]:
        """Return the number of bytes from each broker."""
        sizes = {at: one.num_bytes for at, one in answers.items() if isinstance(one, FetchResult)}
        return [sum([sizes.get(at, 0) for at in places]) for places in self._places]


def _has_error(answers: Mapping[int, FetchResult[T] | LogStoreError]) -> bool:
    return any(isinstance(one, LogStoreError) for one in answers.values())


async def _end(futures: Sequence["asyncio.Future[Any]"]) -> None:
    """Cancel the unfinished futures, and wait for them."""
    under_way = [one for one in futures if not one.done()]
    for one in under_way:
        one.cancel()
    for ended in await asyncio.gather(*under_way, return_exceptions=True):
        if isinstance(ended, Fetched):  # it was done before it could be cancelled
            ended.reservation.release()
