"""A process that is a member of a group with Kafka's protocol (librdkafka's), otherwise as ``group_member``.

    python -m tests.faults.bench.kafka_group_member BOOTSTRAP HISTORY NAME GROUP TOPICS SECONDS OPTIONS

Invariant: the records that a poll returned for a partition are not processed once it is revoked or lost.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.faults.bench.group_member import POLL_S, REST_S, Positions, Teller, running_member
from tests.faults.bench.records import id_of

_POLLED_MAX = 100
_COMMON = {
    "broker.address.family": "v4",
    "log_level": 0,
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 500,
}


class Member:
    def __init__(self, teller: Teller, seconds_a_batch: float) -> None:
        self._teller = teller
        self._positions = Positions(teller)
        self._seconds_a_batch = seconds_a_batch
        self._polled: dict[tuple[str, int], list[tuple[int, str | None]]] = {}

    def told(self, op: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        """Return a rebalance callback that records ``op``."""

        def tell(_: Consumer, partitions: list[TopicPartition]) -> None:
            named = [(one.topic, one.partition) for one in partitions]
            for each in named:
                self._polled.pop(each, None)
            self._positions.forget(named)
            self._teller.tell(op, partitions=named)

        return tell

    def work(self, consumer: Consumer) -> None:
        """Poll what there is, process and commit. Raises KafkaException."""
        message = consumer.poll(POLL_S)
        for _ in range(_POLLED_MAX):
            if message is None:
                break
            self._take(message)
            message = consumer.poll(0)
        if message is not None:
            self._take(message)
        done, self._polled = self._polled, {}
        if done:
            time.sleep(self._seconds_a_batch)
        for (topic, partition), rows in done.items():
            self._positions.processed(topic, partition, rows)

        def commit(topic: str, offsets: dict[int, int]) -> None:
            wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
            for one in consumer.commit(offsets=wanted, asynchronous=False):
                if one.error is not None:
                    raise KafkaException(one.error)

        self._positions.commit(commit, KafkaException)

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            raise KafkaException(error)
        rows = self._polled.setdefault((message.topic(), message.partition()), [])
        rows.append((message.offset(), id_of(message.headers() or ())))


def main(
    bootstrap: str,
    history: str,
    name: str,
    group: str,
    topics: list[str],
    seconds_a_batch: float,
    options: dict[str, Any],
) -> None:
    with running_member(history, name, group) as (teller, stopping):
        while not stopping.is_set():
            member = Member(teller, seconds_a_batch)
            addressed = {"bootstrap.servers": bootstrap, "client.id": name, "group.id": group}
            consumer = Consumer({**_COMMON, **addressed, **options})
            try:
                consumer.subscribe(
                    topics,
                    on_assign=member.told("assigned"),
                    on_revoke=member.told("revoked"),
                    on_lost=member.told("lost"),
                )
                _work_until(stopping, member, consumer)
            finally:
                consumer.close()


def _work_until(stopping: threading.Event, member: Member, consumer: Consumer) -> None:
    """Work until the process is to stop, or this consumer can do nothing more.

    That is so if a poll came later than ``max.poll.interval.ms``, or after a fatal error. A static member of the
    consumer protocol gets UNRELEASED_INSTANCE_ID, which is fatal, for as long as the session of its killed predecessor
    lasts (KIP-848).
    """
    while not stopping.is_set():
        try:
            member.work(consumer)
        except KafkaException as error:
            # The store is away, or a poll came late.
            print(repr(error), file=sys.stderr, flush=True)
            if error.args[0].code() == KafkaError._MAX_POLL_EXCEEDED:
                return  # it may not join again if its coordinator was also away
            stopping.wait(REST_S)
            if error.args[0].code() == KafkaError._FATAL:
                return


if __name__ == "__main__":
    main(*sys.argv[1:5], json.loads(sys.argv[5]), float(sys.argv[6]), json.loads(sys.argv[7]))
