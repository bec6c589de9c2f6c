"""A store that is killed under its clients: idempotent producers lose no record and store none twice."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT
from tests.support.kafka_clients.confluent_client import consumer_config
from tests.support.kafka_clients.store_process import KafkaStoreProcess

pytestmark = pytest.mark.system

KILLS = 1


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KafkaStoreProcess]:
    with KafkaStoreProcess(tmp_path / "data") as store:
        yield store


def test_an_idempotent_producer_outlives_its_store(killed: KafkaStoreProcess):
    served = killed.served
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result(30)
    acknowledged: dict[int, int] = {}
    failures: list[str] = []
    stop = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        producer = Producer(
            {
                "bootstrap.servers": served.bootstrap,
                "broker.address.family": "v4",
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
            }
        )

        def on_delivery(number: int):
            def report(error, message) -> None:
                if error is None:
                    acknowledged[number] = message.offset()
                else:
                    failures.append(str(error))

            return report

        while not stop.is_set():
            producer.produce("t", b"%d" % sent, partition=sent % 2, on_delivery=on_delivery(sent))
            sent += 1
            producer.poll(0.001)
        assert producer.flush(60) == 0

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for _ in range(KILLS):
            before = len(acknowledged)
            eventually(lambda before=before: len(acknowledged) > before + 200, "nothing is acknowledged")
            killed.kill()
            killed.start()
        before = len(acknowledged)
        eventually(lambda: len(acknowledged) > before + 200, "nothing is acknowledged after the last start")
    finally:
        stop.set()
        producing.join()
    assert not failures
    read = CONFLUENT.read(served, {"t": 2})["t"]
    assert [(r.partition, r.offset) for r in sorted(read, key=lambda r: int(r.value))] == [
        (number % 2, acknowledged[number]) for number in range(sent)
    ]


@pytest.mark.long
def test_a_consumer_outlives_its_store(killed: KafkaStoreProcess):
    served = killed.served
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    config = consumer_config(served.bootstrap, "group", **{"reconnect.backoff.max.ms": 200})
    with closing(Consumer(config)) as consumer:
        consumer.subscribe(["t"])
        values: list[bytes] = []

        def read(count: int) -> None:
            def enough() -> bool:
                # Errors from which librdkafka recovers by itself come as messages, but are no records.
                values.extend(m.value() for m in consumer.consume(100, 0.1) if m.error() is None)
                return len(values) >= count

            eventually(enough, f"{len(values)} of {count} records came")

        for number in range(KILLS + 1):
            producer = Producer({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
            producer.produce("t", b"%d" % number)
            assert producer.flush(30) == 0
            read(number + 1)
            consumer.commit(asynchronous=False)
            if number < KILLS:
                killed.kill()
                killed.start()
        assert values == [b"%d" % number for number in range(KILLS + 1)]
        assert consumer.committed([TopicPartition("t", 0)], timeout=30)[0].offset == KILLS + 1
