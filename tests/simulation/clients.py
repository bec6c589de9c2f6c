"""Clients of the simulated world; the history has all of their calls."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.context import ANONYMOUS, RequestContext
from logstore.errors import LogStoreError, UnknownGroupError
from logstore.node import Store
from logstore.protocol.error_codes import code_of, kind_of
from logstore.records.batch import DecodedRecords
from logstore.records.batch_identity import ProducerIdentity
from logstore.records.schema import WIRE_SCHEMA
from tests.faults.bench.records import Record, make_value, rows_of_table, stored
from tests.simulation.history import History
from tests.simulation.node import ConnectionLostError, NoConnectionError
from tests.simulation.site import GroupName, Log, Place, Site

CLIENT = RequestContext("1", "simulated", "HTTP", "127.0.0.1", None, ANONYMOUS)
#: Responses that say that a request has changed nothing; after any other 5xx its outcome is open.
_REFUSED = {429, 503}
_AGAIN_S = 0.3
_TRIES = 400


@dataclass(frozen=True, slots=True)
class TopicSpec:
    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")


class Client:
    """A client that sends one request at a time."""

    def __init__(self, site: Site, history: History, name: str, rng: random.Random, *, records_s: float = 100) -> None:
        self.site, self.history, self.rng = site, history, rng
        self.process = name
        self._name = name
        self._lives = itertools.count(1)
        self.records_s = records_s

    async def call(
        self,
        op: str,
        place: Place,
        work: Callable[[Store], Awaitable[Any]],
        told: Callable[[Any], Mapping[str, Any]],
        asked: Mapping[str, Any],
        *,
        tries: int = 1,
    ) -> tuple[str, Mapping[str, Any]]:
        """Make a call, up to ``tries`` times while its outcome is open, and return its phase and result."""
        number = self.history.invoke(self.process, op, **asked)
        phase, answer = await self._send(place, work)
        repeated = False
        while phase == "info" and tries > 1:
            tries -= 1
            repeated = True
            await asyncio.sleep(_AGAIN_S)
            again, answer = await self._send(place, work)
            if again == "ok":
                phase = again
        result: Mapping[str, Any] = {}
        if phase == "ok":
            result = told(answer)
            if repeated and "places" in result:
                result = {**result, "unknown": [at for at, place in enumerate(result["places"]) if place is None]}
        self.history.complete(number, self.process, op, phase, **result)
        if phase == "info":
            self.process = f"{self._name}.{next(self._lives)}"
        return phase, result

    async def _send(self, place: Place, work: Callable[[Store], Awaitable[Any]]) -> tuple[str, Any]:
        try:
            return "ok", await self.site.call(work, place)
        except NoConnectionError:
            return "fail", None
        except ConnectionLostError:
            return "info", None
        except LogStoreError as error:
            return "fail" if _is_known(error) else "info", None
        except Exception as error:  # noqa: BLE001 - any other error is unforeseen, and reported
            self.site.unforeseen.append(f"a request met an unforeseen error: {error!r}")
            return "info", None


class Producer(Client):
    async def run(self, topics: Sequence[TopicSpec], *, sequenced: bool) -> None:
        identity: _Identity | None = None
        for sequence in itertools.count():
            await asyncio.sleep(self.rng.expovariate(self.records_s / 6))
            topic = self.rng.choice(topics)
            partition = self.rng.randrange(topic.partitions)
            records = self._records(f"{self._name}-{sequence}", keyed=topic.compacted)
            if sequenced and identity is None and (identity := await self._new_identity(None)) is None:
                await asyncio.sleep(_AGAIN_S)
                continue
            # With acks=1 the leader alone acknowledges, and may lose the record, so a cluster gets no such requests.
            careless = ["all", "0"] if self.site.cluster is not None else ["all", "1", "0"]
            acks = "all" if identity is not None else self.rng.choice(careless)
            phase, _ = await self._produce(topic, partition, records, acks, identity)
            if identity is not None:
                if phase == "ok":
                    identity.sequences[topic.name, partition] += len(records)
                elif phase == "info":
                    identity = await self._new_identity(
                        identity
                    )  # the outcome is open, and a higher epoch begins its own sequence
            if phase != "ok":
                await asyncio.sleep(_AGAIN_S)

    def _records(self, prefix: str, *, keyed: bool) -> list[Record]:
        """Make records; with ``keyed`` each has a key, and some are tombstones."""
        large = self.rng.random() < 0.1
        records = []
        for n in range(self.rng.randint(1, 3 if large else 12)):
            key = f"k{self.rng.randrange(20)}" if keyed or self.rng.random() < 0.5 else None
            value = make_value(f"{prefix}-{n}", self.rng.randint(2_000, 20_000) if large else 0, self.rng)
            is_tombstone = keyed and self.rng.random() < 0.1
            records.append(Record(f"{prefix}-{n}", key, None if is_tombstone else value, None))
        return records

    async def _produce(
        self, topic: TopicSpec, partition: int, records: Sequence[Record], acks: str, identity: "_Identity | None"
    ) -> tuple[str, Mapping[str, Any]]:
        asked = {
            "topic": topic.name,
            "partition": partition,
            "acks": acks,
            "format": "arrow",
            "records": [record.in_history() for record in records],
        }
        sender = None
        if identity is not None:
            sequences = {partition: identity.sequences[topic.name, partition]}
            sender = ProducerIdentity(identity.id, identity.epoch, sequences)

        async def work(store: Store) -> list[tuple[int, int] | None]:
            broker = store.broker
            result = await broker.produce.records.produce(
                CLIENT,
                broker.topics.served.topic(CLIENT, topic.name),
                decoded(records),
                partition=partition,
                acks={"all": -1, "1": 1, "0": 0}[acks],
                identity=sender,
            )
            if acks == "0":
                return []
            (part,) = result.partitions
            if part.error is not None:
                raise part.error
            return [(partition, part.base_offset + at) for at in range(len(records))]

        return await self.call(
            "produce",
            Log(topic.name, partition),
            work,
            lambda places: {"places": places} if acks != "0" else {},
            asked,
            tries=1 if sender is None else _TRIES,
        )

    async def _new_identity(self, old: "_Identity | None") -> "_Identity | None":
        async def work(store: Store) -> "_Identity":
            found = await store.broker.produce.records.init_producer(
                CLIENT, *(() if old is None else (old.id, old.epoch))
            )
            return _Identity(found.producer_id, found.producer_epoch)

        _, found = await self._send(None, work)
        return found  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Identity:
    id: int
    epoch: int
    sequences: Counter[tuple[str, int]] = field(default_factory=Counter)


class Reader(Client):
    """Reads all topics, and commits its positions."""

    async def run(self, topics: Sequence[TopicSpec], group: str) -> None:
        at = {topic.name: dict.fromkeys(range(topic.partitions), 0) for topic in topics}
        #: Topics that could not be read or committed: reading continues from the committed offsets.
        failed: set[str] = set()
        while True:
            await asyncio.sleep(self.rng.uniform(0, 0.4))
            topic = self.rng.choice(topics)
            name, positions = topic.name, at[topic.name]
            if name in failed and not await self._begin_anew(group, name, positions):
                await asyncio.sleep(_AGAIN_S)
                continue
            failed.discard(name)
            reached = True
            for partition in positions:
                reached &= await self._read_on(name, partition, positions)
            if self.rng.random() < 0.02:
                await self._delete_records(name, self.rng.choice(list(positions)), positions)
            if not reached or await self._commit(group, name, positions) != "ok":
                failed.add(name)
            elif self.rng.random() < 0.1:
                await self._begin_anew(group, name, positions)
            if self.rng.random() < 0.1:
                await self._offset_for_time(name, self.rng.choice(list(positions)))

    async def _begin_anew(self, group: str, topic: str, positions: dict[int, int]) -> bool:
        """Continue from the committed offsets like a new consumer. Return False if the store did not return them."""
        phase, told = await self.committed(group, topic)
        if phase == "ok":
            self.process = f"{self._name}.{next(self._lives)}"
            positions.update(dict.fromkeys(positions, 0))
            positions.update({int(p): offset for p, offset in told["offsets"].items()})
        return phase == "ok"

    async def _delete_records(self, topic: str, partition: int, positions: Mapping[int, int]) -> None:
        before = positions[partition] // 2

        async def work(store: Store) -> Mapping[str, Any]:
            broker = store.broker
            return {
                "log_start": await broker.topics.tables.delete_records(
                    CLIENT, broker.topics.served.topic(CLIENT, topic), partition, before
                )
            }

        asked = {"topic": topic, "partition": partition, "before_offset": before}
        await self.call("delete_records", Log(topic, partition), work, lambda told: told, asked)

    async def _offset_for_time(self, topic: str, partition: int) -> None:
        timestamp = self.site.now_ms() - self.rng.randrange(20_000)

        async def work(store: Store) -> Mapping[str, Any]:
            broker = store.broker
            found = await broker.fetch.offset_for_timestamp(
                CLIENT, broker.topics.served.topic(CLIENT, topic), partition, timestamp
            )
            return {"offset": None if found is None else found[0]}

        asked = {"topic": topic, "partition": partition, "timestamp": timestamp}
        await self.call("offset_for_time", Log(topic, partition), work, lambda told: told, asked)

    async def _read_on(self, topic: str, partition: int, positions: dict[int, int]) -> bool:
        for _ in range(4):
            phase, told = await self.fetch(topic, partition, positions[partition])
            if phase != "ok":
                start = await self.log_start(topic, partition)
                if start is None or start <= positions[partition]:
                    return False
                positions[partition] = start  # records were deleted
                continue
            positions[partition] = told["next_offset"]
            if told["next_offset"] >= told["high_watermark"]:
                break
        return True

    async def log_start(self, topic: str, partition: int) -> int | None:
        """Return the log start, or None if the store did not return it."""

        async def work(store: Store) -> int:
            return store.broker.topics.served.topic(CLIENT, topic).partition(partition).log_start_offset

        _, start = await self._send(Log(topic, partition), work)
        return start  # type: ignore[no-any-return]

    async def fetch(self, topic: str, partition: int, offset: int) -> tuple[str, Mapping[str, Any]]:
        max_bytes = self.rng.choice([2_000, 20_000, 200_000])

        async def work(store: Store) -> Mapping[str, Any]:
            broker = store.broker
            found = await broker.fetch.partition(
                CLIENT,
                broker.topics.served.topic(CLIENT, topic),
                partition,
                offset,
                max_bytes=max_bytes,
                min_bytes=1,
                max_wait_ms=0,
            )
            return {
                "records": rows_of_table(found.records),
                "next_offset": found.next_offset,
                "high_watermark": found.high_watermark,
                "log_start": found.log_start_offset,
            }

        asked = {"topic": topic, "partition": partition, "offset": offset}
        return await self.call("fetch", Log(topic, partition), work, lambda told: told, asked)

    async def _commit(self, group: str, topic: str, positions: Mapping[int, int]) -> str:
        offsets = dict(positions)

        async def work(store: Store) -> None:
            wanted = [OffsetToCommit(topic, partition, offset) for partition, offset in offsets.items()]
            await store.groups.commit(CLIENT, group, wanted)

        asked = {"group": group, "topic": topic, "offsets": {str(p): offset for p, offset in offsets.items()}}
        return (await self.call("commit", GroupName(group), work, lambda _: {}, asked))[0]

    async def committed(self, group: str, topic: str) -> tuple[str, Mapping[str, Any]]:
        async def work(store: Store) -> Mapping[str, Any]:
            try:
                known = store.groups.committed(CLIENT, group, topic)
            except UnknownGroupError:
                known = []  # the group has committed nothing
            return {"offsets": {str(each.partition): each.offset for each in known}}

        return await self.call("committed", GroupName(group), work, lambda told: told, {"group": group, "topic": topic})


def decoded(records: Sequence[Record]) -> DecodedRecords:
    batch = pa.RecordBatch.from_pydict(
        {
            "timestamp": [record.timestamp for record in records],
            "key": [stored(record.key) for record in records],
            "value": [stored(record.value) for record in records],
            "headers": [[{"key": "id", "value": record.record_id.encode()}] for record in records],
        },
        schema=WIRE_SCHEMA,
    )
    return DecodedRecords(batch, None)


def _is_known(error: LogStoreError) -> bool:
    status = kind_of(code_of(error))
    return status in _REFUSED or (status < 500 and status != 408)
