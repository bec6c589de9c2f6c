"""Clients with Kafka's protocol in the simulated world: they find brokers by Metadata and FindCoordinator, produce,
read with fetch sessions, and commit. A request is a frame, which may be cut anywhere.
"""

import asyncio
import dataclasses
import itertools
import random
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from logstore.errors import LogStoreError, OffsetOutOfRangeError, RequestTimedOutError
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import Compression
from logstore.kafka_protocol import messages
from logstore.kafka_protocol.requests import write_request
from logstore.kafka_protocol.responses import read_response
from logstore.protocol.error_codes import ERROR_CODES, error_of_kafka
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
from tests.faults.bench.records import Record, id_of, shown, stored, text_of
from tests.simulation.clients import _AGAIN_S as AGAIN_S
from tests.simulation.clients import _TRIES as TRIES
from tests.simulation.clients import Producer, Reader, TopicSpec
from tests.simulation.clients import _Identity as Identity
from tests.simulation.listeners import KAFKA_PORT
from tests.simulation.node import ConnectionLostError, NoConnectionError
from tests.simulation.site import GroupName, Log, Place, Site
from tests.simulation.ways import Ways
from tests.support.kafka_batches import log_batch
from tests.support.kafka_reading import read_batches
from tests.support.records import Row

T = TypeVar("T")

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 10, 11, 12, 13, 14
DELETE_RECORDS, INIT_PRODUCER_ID, CONSUMER_HEARTBEAT = 21, 22, 68
#: Of each API a client uses one of these versions: with names of topics or their ids, plain and flexible ones.
_VERSIONS = {
    PRODUCE: (3, 8, 12, 13),
    FETCH: (11, 12, 13, 17),
    LIST_OFFSETS: (1, 7),
    METADATA: (10, 12),
    OFFSET_COMMIT: (9,),
    OFFSET_FETCH: (8, 9),
    FIND_COORDINATOR: (3, 5),
    JOIN_GROUP: (5, 9),
    HEARTBEAT: (3, 4),
    LEAVE_GROUP: (3, 5),
    SYNC_GROUP: (3, 5),
    DELETE_RECORDS: (1, 2),
    INIT_PRODUCER_ID: (3, 4),
    CONSUMER_HEARTBEAT: (1,),
}
_BY_ID = 13
_EARLIEST = -2
#: The answer to a commit that says so leaves it open: an append of the coordinator has failed, or took too long.
_OPEN_COMMITS = (15, 16)
_PATIENCE_S = 6.0
#: The share of requests of which a part is sent, and no more; half of them lack the last bytes alone.
_CUT_SHORT = 0.01
_LENGTH = struct.Struct(">i")


class KafkaSite(Site):
    """The store as one client with Kafka's protocol sees it. ``call`` gives its work the ``Link`` to a broker."""

    def __init__(self, site: Site, name: str, rng: random.Random, *, patience_s: float = _PATIENCE_S) -> None:
        super().__init__(site.nodes, site.cluster, site.network, rng)
        self.unforeseen = site.unforeseen
        self.name = name
        self.topic_ids: dict[str, bytes] = {}
        self.versions = {api_key: rng.choice(versions) for api_key, versions in _VERSIONS.items()}
        self._patience_s = patience_s
        self._ways = Ways(site.network, name)
        self._numbers = itertools.count(1)
        self._ports: dict[Place, int] = {}

    async def call(self, work: Callable[[Any], Awaitable[T]], place: Place = None) -> T:
        link = await self.find(place)
        try:
            return await work(link)
        except (LogStoreError, NoConnectionError, ConnectionLostError):
            self.forget(place)
            raise

    def forget(self, place: Place) -> None:
        """Look for the broker anew next time."""
        self._ports.pop(place, None)

    async def find(self, place: Place) -> "Link":
        """The broker that leads the log or coordinates the group; NoConnectionError if none is known."""
        any_one = Link(self, KAFKA_PORT + self._rng.randrange(len(self.nodes)))
        if place is None:
            return any_one
        if place not in self._ports:
            try:
                if isinstance(place, GroupName):
                    self._ports[place] = await any_one.coordinator_port(place.name)
                else:
                    self._ports |= await any_one.leader_ports(place.topic)
            except (LogStoreError, ConnectionLostError):
                raise NoConnectionError from None  # what it was for is not sent
        if place not in self._ports:
            raise NoConnectionError
        return Link(self, self._ports[place])

    async def ask(self, port: int, api_key: int, message: Any, *, is_answered: bool = True) -> Any:
        """The answer to a request. NoConnectionError: it was not sent; ConnectionLostError."""
        reader, transport = await self._ways.to(port)
        number, version = next(self._numbers), self.versions[api_key]
        frame = b"".join(map(bytes, write_request(api_key, version, number, self.name, message)))
        if self._rng.random() < _CUT_SHORT:
            at_most = self._rng.choice([4, len(frame)])
            transport.write(frame[: -self._rng.randrange(1, at_most)])
            transport.close()
            raise NoConnectionError  # half a request is none
        transport.write(frame)
        if not is_answered:
            return None
        try:
            async with asyncio.timeout(self._patience_s):
                (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                answer = await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            self._ways.close(port)
            raise ConnectionLostError from None
        answered, response = read_response(api_key, version, answer)
        if answered != number:
            raise AssertionError(f"the answer to {answered} came, request {number} waits")
        return response


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """The way of a client to one broker."""

    site: KafkaSite
    port: int

    async def ask(self, api_key: int, message: Any, *, is_answered: bool = True) -> Any:
        return await self.site.ask(self.port, api_key, message, is_answered=is_answered)

    async def coordinator_port(self, group: str) -> int:
        keys = {"key": group} if self.site.versions[FIND_COORDINATOR] < 4 else {"coordinator_keys": [group]}
        told = await self.ask(FIND_COORDINATOR, messages.FindCoordinatorRequest(**keys))
        found = told.coordinators[0] if told.coordinators else told
        require(found.error_code)
        return int(found.port)

    async def leader_ports(self, topic: str) -> dict[Place, int]:
        wanted = messages.MetadataRequest.MetadataRequestTopic(name=topic)
        told = await self.ask(METADATA, messages.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False))
        ports = {broker.node_id: broker.port for broker in told.brokers}
        (found,) = told.topics
        require(found.error_code)
        self.site.topic_ids[topic] = bytes(found.topic_id)
        return {
            Log(topic, one.partition_index): ports[one.leader_id] for one in found.partitions if one.leader_id in ports
        }

    def named(self, api_key: int, topic: str, field: str = "name") -> dict[str, Any]:
        """The topic in a request, by its name or its id."""
        if self.site.versions[api_key] >= _BY_ID:
            return {"topic_id": self.site.topic_ids[topic]}
        return {field: topic}

    async def list_offset(self, log: Log, timestamp: int) -> int:
        kinds = messages.ListOffsetsRequest
        asked = kinds.ListOffsetsPartition(partition_index=log.partition, timestamp=timestamp)
        topic = kinds.ListOffsetsTopic(name=log.topic, partitions=[asked])
        told = await self.ask(LIST_OFFSETS, kinds(replica_id=-1, topics=[topic]))
        (found,) = told.topics[0].partitions
        require(found.error_code)
        return int(found.offset)

    async def commit(
        self, group: str, topic: str, offsets: Mapping[int, int], member_id: str = "", epoch: int = -1
    ) -> None:
        kinds = messages.OffsetCommitRequest
        partitions = [
            kinds.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            for partition, offset in offsets.items()
        ]
        told = await self.ask(
            OFFSET_COMMIT,
            kinds(
                group_id=group,
                member_id=member_id,
                generation_id_or_member_epoch=epoch,
                topics=[kinds.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
            ),
        )
        for one in told.topics[0].partitions:
            if one.error_code in _OPEN_COMMITS:
                raise RequestTimedOutError("whether it is committed is open")
            require(one.error_code)

    async def committed(self, group: str, topic: str, member_id: str | None = None, epoch: int = -1) -> dict[int, int]:
        kinds = messages.OffsetFetchRequest
        of = kinds.OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=epoch, topics=None)
        told = await self.ask(OFFSET_FETCH, kinds(groups=[of], require_stable=True))
        (found,) = told.groups
        require(found.error_code)
        partitions = [one for each in found.topics if each.name == topic for one in each.partitions]
        for one in partitions:
            require(one.error_code)
        return {one.partition_index: one.committed_offset for one in partitions if one.committed_offset >= 0}


def require(error_code: int) -> None:
    """Raise the error of an answer."""
    if error_code:
        raise error_of_kafka(error_code, ERROR_CODES[LogStoreError], f"Kafka's error {error_code}")


class KafkaProducer(Producer):
    async def _produce(
        self, topic: TopicSpec, partition: int, records: Sequence[Record], acks: str, identity: Identity | None
    ) -> tuple[str, Mapping[str, Any]]:
        now_ms = self.site.now_ms()
        records = [dataclasses.replace(record, timestamp=now_ms) for record in records]
        sender = NO_IDENTITY
        if identity is not None:
            sender = BatchIdentity(identity.id, identity.epoch, identity.sequences[topic.name, partition])
        compression = self.rng.choice([Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD])
        rows = [Row(r.timestamp, stored(r.key), stored(r.value), (("id", r.record_id.encode()),)) for r in records]
        batch = encode_batch(
            log_batch(rows, range(len(rows))), leader_epoch=-1, identity=sender, compression=compression
        )

        async def work(link: Link) -> Mapping[str, Any]:
            kinds = messages.ProduceRequest
            part = kinds.PartitionProduceData(index=partition, records=batch)
            data = kinds.TopicProduceData(partition_data=[part], **link.named(PRODUCE, topic.name))
            request = kinds(acks={"all": -1, "1": 1, "0": 0}[acks], timeout_ms=4_000, topic_data=[data])
            told = await link.ask(PRODUCE, request, is_answered=acks != "0")
            if told is None:
                return {"places": [None] * len(records), "unknown": list(range(len(records)))}
            (found,) = told.responses[0].partition_responses
            require(found.error_code)
            return {"places": [(partition, found.base_offset + at) for at in range(len(records))]}

        return await self.call(
            "produce",
            Log(topic.name, partition),
            work,
            lambda told: told,
            {
                "topic": topic.name,
                "partition": partition,
                "acks": acks,
                "format": "kafka",
                "records": [record.in_history() for record in records],
            },
            tries=1 if identity is None else TRIES,
        )

    async def _new_identity(self, old: Identity | None) -> Identity | None:
        async def work(link: Link) -> Identity:
            before = {} if old is None else {"producer_id": old.id, "producer_epoch": old.epoch}
            request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, **before)
            told = await link.ask(INIT_PRODUCER_ID, request)
            require(told.error_code)
            return Identity(told.producer_id, told.producer_epoch)

        _, found = await self._send(None, work)
        return found  # type: ignore[no-any-return]


class FetchSession:
    """What a broker knows of a reader's partitions, as the reader takes it: it sends and is sent changes alone."""

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        """Begin anew."""
        self._id = self._epoch = 0
        self._at: dict[Log, int] = {}
        #: High watermark and log start as they were told last.
        self._ends: dict[Log, tuple[int, int]] = {}

    async def fetch(
        self, link: Link, at: Mapping[Log, int], max_bytes: int, max_wait_ms: int
    ) -> dict[Log, Mapping[str, Any] | LogStoreError]:
        """What there is in each log from its position on. LogStoreError if the session has ended; as ``Link.ask``."""
        kinds = messages.FetchRequest
        changed = [log for log in at if self._at.get(log) != at[log]]
        partitions = {
            topic: [
                kinds.FetchPartition(partition=log.partition, fetch_offset=at[log], partition_max_bytes=max_bytes)
                for log in logs
            ]
            for topic, logs in _by_topic(changed).items()
        }
        forgotten = {topic: [log.partition for log in logs] for topic, logs in _by_topic(self._at.keys() - at).items()}
        request = kinds(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[
                kinds.FetchTopic(partitions=asked, **link.named(FETCH, topic, "topic"))
                for topic, asked in partitions.items()
            ],
            forgotten_topics_data=[
                kinds.ForgottenTopic(partitions=gone, **link.named(FETCH, topic, "topic"))
                for topic, gone in forgotten.items()
            ],
        )
        try:
            told = await link.ask(FETCH, request)
            require(told.error_code)
        except (LogStoreError, NoConnectionError, ConnectionLostError):
            self.end()
            raise
        self._at = dict(at)
        names = {raw: name for name, raw in link.site.topic_ids.items()}
        found: dict[Log, Mapping[str, Any] | LogStoreError] = {}
        for topic in told.responses:
            for part in topic.partitions:
                log = Log(topic.topic or names[bytes(topic.topic_id)], part.partition_index)
                found[log] = self._taken(log, part)
        for log in at:
            if log not in found and log in self._ends:  # nothing is new
                found[log] = self._told(log, [], at[log])
        if any(isinstance(one, Mapping) and one["records"] for one in found.values()):
            # They may have taken the room of others, which are asked for again.
            found = {log: one for log, one in found.items() if not _lacks_records(one, at[log])}
        self._id, self._epoch = told.session_id, self._epoch + 1
        if not self._id:
            self.end()
        return found

    def _taken(self, log: Log, part: Any) -> Mapping[str, Any] | LogStoreError:
        try:
            require(part.error_code)
        except LogStoreError as error:
            self._ends.pop(log, None)
            return error
        self._ends[log] = part.high_watermark, part.log_start_offset
        rows, next_offset = [], self._at[log]
        for batch in read_batches([part.records or b""]):
            next_offset = max(next_offset, batch.header.last_offset + 1)
            for offset, row in batch.rows.items():
                if offset >= self._at[log]:
                    value = shown(text_of(row.value))
                    rows.append([offset, row.timestamp, id_of(row.headers or ()), text_of(row.key), value])
        return self._told(log, rows, next_offset)

    def _told(self, log: Log, rows: Sequence[Any], next_offset: int) -> Mapping[str, Any]:
        high_watermark, log_start = self._ends[log]
        return {
            "records": rows,
            "next_offset": next_offset,
            "high_watermark": high_watermark,
            "log_start": log_start,
        }


def _lacks_records(told: Mapping[str, Any] | LogStoreError, position: int) -> bool:
    return isinstance(told, Mapping) and not told["records"] and told["high_watermark"] > position


def _by_topic(logs: Any) -> dict[str, list[Log]]:
    """By name; in the order of their names."""
    found: dict[str, list[Log]] = {}
    for log in sorted(logs):
        found.setdefault(log.topic, []).append(log)
    return found


class KafkaReader(Reader):
    """Polls all its logs of a broker at once."""

    site: KafkaSite

    def _begin_sessions(self) -> None:
        self._sessions: dict[int, FetchSession] = {}

    async def poll(self, at: Mapping[Log, int]) -> dict[Log, Mapping[str, Any] | LogStoreError | None]:
        """What each log has from its position on; None if it was not told, an error if that is why."""
        of_port: dict[int, dict[Log, int]] = {}
        found: dict[Log, Mapping[str, Any] | LogStoreError | None] = dict.fromkeys(at)
        for log, position in at.items():
            try:
                of_port.setdefault((await self.site.find(log)).port, {})[log] = position
            except NoConnectionError:
                continue
        for port, wanted in of_port.items():
            found |= await self._poll(port, wanted)
        return found

    async def _poll(self, port: int, at: Mapping[Log, int]) -> dict[Log, Any]:
        max_bytes, max_wait_ms = self.rng.choice([2_000, 20_000, 200_000]), self.rng.choice([0, 0, 300])
        numbers = {
            log: self.history.invoke(self.process, "fetch", topic=log.topic, partition=log.partition, offset=offset)
            for log, offset in at.items()
        }
        process, phase = self.process, "fail"
        told: dict[Log, Mapping[str, Any] | LogStoreError | None] = {}
        try:
            session = self._sessions.setdefault(port, FetchSession())
            told |= await session.fetch(Link(self.site, port), at, max_bytes, max_wait_ms)
        except (LogStoreError, NoConnectionError):
            pass
        except ConnectionLostError:
            phase = "info"
        for log, number in numbers.items():
            found = told.get(log)
            try:
                self.site.require_one_leader(log)
            except LogStoreError:
                found = told[log] = None
            if isinstance(found, Mapping):
                self.history.complete(number, process, "fetch", "ok", **found)
            else:
                self.site.forget(log)
                self.history.complete(number, process, "fetch", phase)
        return {log: told.get(log) for log in at}

    async def run(self, topics: Sequence[TopicSpec], group: str) -> None:
        self._begin_sessions()
        at = {topic.name: dict.fromkeys(range(topic.partitions), 0) for topic in topics}
        failed: dict[str, None] = {}
        while True:
            await asyncio.sleep(self.rng.uniform(0, 0.4))
            for name in list(failed):
                if await self._begin_anew(group, name, at[name]):
                    del failed[name]
            wanted = {Log(name, p): at[name][p] for name in at if name not in failed for p in at[name]}
            for log, found in (await self.poll(wanted)).items():
                positions = at[log.topic]
                if isinstance(found, Mapping):
                    positions[log.partition] = found["next_offset"]
                elif isinstance(found, OffsetOutOfRangeError):
                    start = await self.log_start(*log)
                    if start is None or start <= positions[log.partition]:
                        failed[log.topic] = None
                    else:
                        positions[log.partition] = start  # records were deleted
            name = self.rng.choice(topics).name
            positions = at[name]
            if self.rng.random() < 0.02:
                await self._delete_records(name, self.rng.choice(list(positions)), positions)
            if name not in failed and await self._commit(group, name, positions) != "ok":
                failed[name] = None
            if self.rng.random() < 0.1:
                failed[name] = None  # it goes on from what is committed
            if self.rng.random() < 0.1:
                await self._offset_for_time(name, self.rng.choice(list(positions)))
            if failed:
                await asyncio.sleep(AGAIN_S)

    async def log_start(self, topic: str, partition: int) -> int | None:
        log = Log(topic, partition)
        _, start = await self._send(log, lambda link: link.list_offset(log, _EARLIEST))  # type: ignore[attr-defined]
        return start  # type: ignore[no-any-return]

    async def _offset_for_time(self, topic: str, partition: int) -> None:
        log, timestamp = Log(topic, partition), self.site.now_ms() - self.rng.randrange(20_000)

        async def work(link: Link) -> int | None:
            offset = await link.list_offset(log, timestamp)
            link.site.require_one_leader(log)
            return None if offset < 0 else offset

        asked = {"topic": topic, "partition": partition, "timestamp": timestamp}
        await self.call("offset_for_time", log, work, lambda offset: {"offset": offset}, asked)

    async def _delete_records(self, topic: str, partition: int, positions: Mapping[int, int]) -> None:
        before = positions[partition] // 2

        async def work(link: Link) -> Mapping[str, Any]:
            kinds = messages.DeleteRecordsRequest
            asked = kinds.DeleteRecordsPartition(partition_index=partition, offset=before)
            wanted = kinds.DeleteRecordsTopic(name=topic, partitions=[asked])
            told = await link.ask(DELETE_RECORDS, kinds(topics=[wanted], timeout_ms=10_000))
            (found,) = told.topics[0].partitions
            require(found.error_code)
            return {"log_start": found.low_watermark}

        asked = {"topic": topic, "partition": partition, "before_offset": before}
        await self.call("delete_records", Log(topic, partition), work, lambda told: told, asked)

    async def _commit(self, group: str, topic: str, positions: Mapping[int, int]) -> str:
        offsets = dict(positions)
        asked = {"group": group, "topic": topic, "offsets": {str(p): offset for p, offset in offsets.items()}}
        work: Callable[[Any], Awaitable[None]] = lambda link: link.commit(group, topic, offsets)  # noqa: E731
        return (await self.call("commit", GroupName(group), work, lambda _: {}, asked))[0]

    async def committed(self, group: str, topic: str) -> tuple[str, Mapping[str, Any]]:
        async def work(link: Link) -> Mapping[str, Any]:
            found = await link.committed(group, topic)
            return {"offsets": {str(partition): offset for partition, offset in found.items()}}

        return await self.call("committed", GroupName(group), work, lambda told: told, {"group": group, "topic": topic})
