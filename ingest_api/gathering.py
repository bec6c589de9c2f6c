"""Small requests that arrive together are appended together.

Columns cost the same for one record as for a hundred, so the requests that come while an append of their topic is being
fsynced become the next one: the journal would not have begun it earlier. Invariants: each request is answered with its
own places, when they are durable; what one request could be refused for is found before it joins others, so that they
share no more than the fate of the journal; the records of a request stay together in their order.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import structlog

from logstore.broker.access import Operation, ResourceType
from logstore.broker.broker import Broker, Topic
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.producing import not_acknowledged
from logstore.broker.topics import require_users_topic
from logstore.errors import InvalidRecordError, LogStoreError
from logstore.records.json_decoder import PlainRecord, decode_plain, plain_columns

log = structlog.stdlib.get_logger(__name__)

#: A larger request gains nothing from company.
GATHERED_BYTES_MAX = 4096
# They bound an append to about 1 MiB, and to a few milliseconds.
_REQUESTS_MAX = 256
_RECORDS_MAX = 2048

#: Partition and offset of each record of a request, in its order.
Places = tuple[list[int], list[int]]

#: Told where the records are, or what became of them instead.
Told = Callable[[Places | None, BaseException | None], None]


class _Waiting:
    """A request that is to be told; it leaves ``gathered`` when its time is up."""

    __slots__ = ("_gathered", "_timer", "_told", "records")

    def __init__(
        self, records: Sequence[PlainRecord], told: Told, timeout_ms: int, gathered: "dict[_Waiting, None]"
    ) -> None:
        self.records = records
        self._told: Told | None = told
        self._gathered = gathered
        self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._time_out, timeout_ms)

    def _time_out(self, timeout_ms: int) -> None:
        self._gathered.pop(self, None)
        self.tell(None, not_acknowledged(timeout_ms))

    def tell(self, places: Places | None, error: BaseException | None = None) -> None:
        """Once: who was told of a time-out hears no more. What goes wrong with it is nobody else's affair."""
        told, self._told = self._told, None
        if told is None:
            return
        self._timer.cancel()
        try:
            told(places, error)
        except Exception:
            log.exception("gathering.telling_failed")


class _Gathering:
    """What waits for a topic's next append, in the order of arrival, and how much is under way."""

    __slots__ = ("appends", "begins", "last_size", "string_keys", "topic", "waiting")

    def __init__(self, topic: Topic, *, string_keys: bool) -> None:
        self.topic = topic
        self.string_keys = string_keys
        self.waiting: dict[_Waiting, None] = {}
        self.appends = 0
        self.last_size = 0
        # At the next turn of the loop.
        self.begins = False

    @property
    def is_due(self) -> bool:
        """Whether an append of them begins: one as large as that under way is encoded while that is fsynced."""
        if self.begins or not self.waiting:
            return False
        return not self.appends or (self.appends == 1 and len(self.waiting) >= self.last_size)


class GatheredProduce:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Requests whose keys are stored in two ways are apart: an append decodes all of its keys in one way.
        self._gathering: dict[tuple[Topic, bool], _Gathering] = {}
        self._appends: set[asyncio.Task[None]] = set()

    def open(self, topic: Topic, body: bytes) -> Sequence[PlainRecord] | None:
        """The records of a JSON body that may join others; None for one that goes its own way (any mistake, too)."""
        config = topic.config
        if len(body) > min(GATHERED_BYTES_MAX, config.max_message_bytes) or config.compacted:
            return None
        return decode_plain(body) or None

    def begin(
        self,
        context: RequestContext,
        topic: Topic,
        records: Sequence[PlainRecord],
        *,
        string_keys: bool,
        timeout_ms: int,
        told: Told,
    ) -> None:
        """As ``Broker.produce`` with acks=all; ``told`` hears of it from the event loop. Who runs out of time before
        the append has begun is not stored. Raises TopicAuthorizationError, InvalidTopicError.
        """
        self._broker.access.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
        require_users_topic(topic)
        gathering = self._gathering.get((topic, string_keys))
        if gathering is None:
            gathering = self._gathering[topic, string_keys] = _Gathering(topic, string_keys=string_keys)
        gathering.waiting[_Waiting(records, told, timeout_ms, gathering.waiting)] = None
        self._begin_if_due(gathering)

    async def produce(
        self,
        context: RequestContext,
        topic: Topic,
        records: Sequence[PlainRecord],
        *,
        string_keys: bool,
        timeout_ms: int,
    ) -> Places:
        """``begin``, and what was told."""
        result: asyncio.Future[Places] = asyncio.get_running_loop().create_future()

        def told(places: Places | None, error: BaseException | None) -> None:
            if result.done():
                return
            if places is None:
                assert error is not None
                result.set_exception(error)
            else:
                result.set_result(places)

        self.begin(context, topic, records, string_keys=string_keys, timeout_ms=timeout_ms, told=told)
        return await result

    def _begin_if_due(self, gathering: _Gathering) -> None:
        if gathering.is_due:
            gathering.begins = True
            # Begins after the other requests that this turn of the loop has read.
            append = asyncio.get_running_loop().create_task(self._append_waiting(gathering))
            self._appends.add(append)
            append.add_done_callback(self._appends.discard)

    async def _append_waiting(self, gathering: _Gathering) -> None:
        gathering.begins = False
        taken = _take(gathering.waiting)
        gathering.appends += 1
        try:
            if taken:
                gathering.last_size = len(taken)
                self._begin_if_due(gathering)
                await self._append_all(gathering, taken)
        finally:
            gathering.appends -= 1
            self._begin_if_due(gathering)
            if not (gathering.appends or gathering.begins):
                del self._gathering[gathering.topic, gathering.string_keys]

    async def _append_all(self, gathering: _Gathering, gathered: list[_Waiting]) -> None:
        try:
            plain = list(itertools.chain.from_iterable(waiting.records for waiting in gathered))
            records = plain_columns(plain, string_keys=gathering.string_keys)
            # Each request waits as long as it wants to: this waits for the journal's word.
            result = await self._broker.produce(INTERNAL, gathering.topic, records, timeout_ms=None)
            partitions, offsets = (places.tolist() for places in result.places())
        except InvalidRecordError as error:
            # The topic was altered since they were looked at, and nothing is stored: now each for itself.
            if len(gathered) == 1:
                gathered[0].tell(None, error)
                return
            for waiting in gathered:
                await self._append_all(gathering, [waiting])
            return
        except BaseException as error:  # noqa: BLE001 - of whatever kind, it is theirs
            for waiting in gathered:
                waiting.tell(None, _copy(error))
            return
        end = 0
        for waiting in gathered:
            first, end = end, end + len(waiting.records)
            waiting.tell((partitions[first:end], offsets[first:end]))


def _take(waiting: dict[_Waiting, None]) -> list[_Waiting]:
    """The first ones, as many as make one append."""
    taken: list[_Waiting] = []
    count = 0
    for one in waiting:
        if taken and (len(taken) == _REQUESTS_MAX or count + len(one.records) > _RECORDS_MAX):
            break
        taken.append(one)
        count += len(one.records)
    for one in taken:
        del waiting[one]
    return taken


def _copy(error: BaseException) -> BaseException:
    """One for each request: an exception that is raised in several tasks collects all their tracebacks."""
    if isinstance(error, LogStoreError):
        copy = error.__class__.__new__(error.__class__)
        copy.__dict__.update(error.__dict__)
        copy.args = error.args
        return copy
    return error
