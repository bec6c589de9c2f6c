"""A producer with Kafka's protocol (librdkafka's), whose records are in the history.

Each record is its own call: it begins when librdkafka takes it, and ends as librdkafka reports it: ``ok`` with its
place, ``fail`` if it is certainly not stored, ``info`` if it may be. Invariants: the number of records in flight is
bounded; no call waits for the store without an end once ``stop`` is set.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.faults.bench.history import Recorder
from tests.faults.bench.records import Record, stored
from tests.faults.bench.workload import TopicSpec
from tests.support.librdkafka import Delivery, Producer, SendError, Status

#: At most this many records of a producer wait for their reports.
_IN_HAND_MAX: Final = 100
#: The timeout of plain producers. A message of an idempotent one must not time out: librdkafka then continues with the
#: next epoch, in which it sends unacknowledged records again, and the store cannot see that it has them.
_MESSAGE_TIMEOUT_MS: Final = 20_000
#: The store is healthy at the end of a run, so this is enough.
_FLUSH_S: Final = 10.0
_GIVEN_UP_S: Final = 30.0
_POLL_S: Final = 0.05
_UNKNOWN_SERVER_ERROR: Final = -1
COMMON: Final = {
    "broker.address.family": "v4",
    "log_level": 0,
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1_000,
}


@dataclass(frozen=True, slots=True)
class ProducerKind:
    """A kind of producer. A plain one sends a record once, so that it is stored once or not at all."""

    name: str
    acks: str = "all"
    idempotent: bool = False

    def config(self, compression: str, linger_ms: int) -> Mapping[str, Any]:
        again: Mapping[str, Any] = {"message.send.max.retries": 0, "message.timeout.ms": _MESSAGE_TIMEOUT_MS}
        if self.idempotent:
            again = {"enable.idempotence": True, "message.timeout.ms": 0, "debug": "eos", "log_level": 7}
        return {
            **COMMON,
            **again,
            "acks": self.acks,
            "compression.type": compression,
            "linger.ms": linger_ms,
            # Small batches let several requests be under way.
            "batch.num.messages": 5,
            "max.in.flight.requests.per.connection": 5,
            "request.timeout.ms": 5_000,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 500,
            "partitioner": "murmur2_random",
        }


IDEMPOTENT: Final = ProducerKind("idempotent", idempotent=True)
PLAIN: Final = ProducerKind("plain")
LEADER_ALONE: Final = ProducerKind("leader-alone", acks="1")


class KafkaProducer:
    """A producer; ``acknowledged`` is called with the topic and the partition of each acknowledged record."""

    def __init__(
        self,
        bootstrap: str,
        recorder: Recorder,
        process: str,
        kind: ProducerKind,
        stop: threading.Event,
        acknowledged: Callable[[str, int], None],
        *,
        compression: str,
        linger_ms: int,
    ) -> None:
        self._recorder = recorder
        self._process = process
        self._kind = kind
        self._stop = stop
        self._acknowledged = acknowledged
        config = kind.config(compression, linger_ms)
        self._producer = Producer({"bootstrap.servers": bootstrap, "client.id": process, **config}, self._look_at)
        #: The call and its topic, by number.
        self._calls: dict[int, tuple[str, str]] = {}

    def send(self, topic: TopicSpec, partition: int | None, record: Record) -> None:
        call = self._recorder.invoke(
            self._process,
            "produce",
            topic=topic.name,
            partition=partition,
            acks=self._kind.acks,
            format="kafka",
            pipeline=self._process if self._kind.idempotent else "",
            records=[record.in_history()],
        )
        try:
            number = self._producer.send(
                topic.name,
                partition,
                stored(record.key),
                stored(record.value),
                timestamp_ms=record.timestamp,
                headers=[("id", record.record_id.encode())],
            )
        except SendError as error:
            self._recorder.complete(call, self._process, "produce", "fail", reason=str(error))
            return
        self._calls[number] = call, topic.name
        while self._producer.in_hand >= _IN_HAND_MAX and not self._stop.is_set():
            self._take(self._producer.poll(_POLL_S))

    def rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stop.is_set():
            self._take(self._producer.poll(min(left, _POLL_S)))

    def finish(self) -> None:
        """Wait until all records are reported; at the end of a run give up those that are not reported soon."""
        while self._producer.in_hand and not self._stop.is_set():
            self._take(self._producer.poll(_POLL_S))
        self._take_all(_FLUSH_S)
        if self._producer.in_hand:
            self._producer.give_up()
            self._take_all(_GIVEN_UP_S)

    def _take_all(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._producer.in_hand and time.monotonic() < until:
            self._take(self._producer.poll(_POLL_S))

    def close(self) -> None:
        self._producer.give_up()
        try:
            self._take(self._producer.poll(0))
        finally:
            self._producer.close()

    def _look_at(self, line: str) -> None:
        if "Beginning partition drain" in line:
            self._recorder.tell(self._process, "bumped", reason=line)

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            call, topic = self._calls.pop(one.number)
            if one.code == 0 and one.offset >= 0:
                self._recorder.complete(call, self._process, "produce", "ok", places=[(one.partition, one.offset)])
                self._acknowledged(topic, one.partition)
                continue
            phase = "fail" if one.status is Status.NOT_PERSISTED else "info"
            told = f"{one.code} {one.reason}, {one.status.name}"
            self._recorder.complete(call, self._process, "produce", phase, reason=told)
            assert one.code != _UNKNOWN_SERVER_ERROR, told
        if deliveries and (fatal := self._producer.fatal_error):
            raise AssertionError(f"{self._process} cannot go on: {fatal}")
