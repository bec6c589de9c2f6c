"""A topic is deleted and created again under an idempotent producer, whose sequence numbers continue (KIP-360)."""

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served

pytestmark = pytest.mark.system

COUNT = 20


def test_an_idempotent_producer_outlives_a_topic_that_is_made_again(served: Served, new_topic):
    topic, other = new_topic("again", 1), new_topic("other", 1)
    config = {"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"}
    admin = AdminClient(config)
    fatal: list[str] = []
    producer = Producer(
        {
            **config,
            "enable.idempotence": True,
            "linger.ms": 0,
            "topic.metadata.refresh.interval.ms": 200,
            "error_cb": lambda error: fatal.append(str(error)) if error.fatal() else None,
        }
    )
    failures: list[str] = []

    def send(*topics: str) -> None:
        for number in range(COUNT):
            for name in topics:
                producer.produce(
                    name, b"%d" % number, on_delivery=lambda error, _: error and failures.append(str(error))
                )
            producer.poll(0)
        assert producer.flush(60) == 0

    def make_again() -> bool:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        except KafkaException:  # it is still being deleted
            return False
        return True

    send(topic, other)
    admin.delete_topics([topic])[topic].result(30)
    eventually(make_again, "the topic is not made again")
    send(topic, other)
    send(topic, other)
    assert (fatal, failures) == ([], [])
    read = CONFLUENT.read(served, {topic: 1, other: 1})
    numbers = [b"%d" % number for number in range(COUNT)]
    assert [record.value for record in read[topic]] == numbers * 2
    assert [record.value for record in read[other]] == numbers * 3
