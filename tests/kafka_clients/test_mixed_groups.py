"""A Kafka client and a ``logstore.Consumer`` in one group share partitions and continue from each other's commits."""

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

import logstore
from logstore.client.admin import Admin
from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.confluent_client import consumer_config
from tests.support.kafka_clients.records import alike_records

pytestmark = pytest.mark.system

CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "consumer": ({"group.protocol": "consumer"}, {"group_protocol": "consumer"}),
    **{
        assignor: (
            {
                "partition.assignment.strategy": assignor,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
            },
            {
                "group_protocol": "classic",
                "partition_assignment_strategy": [assignor],
                "session_timeout_ms": 10_000,
                "heartbeat_interval_ms": 500,
            },
        )
        for assignor in ("range", "cooperative-sticky")
    },
}

_OF_A_REBALANCE = {KafkaError.STALE_MEMBER_EPOCH, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["consumer", "range", pytest.param("cooperative-sticky", marks=pytest.mark.long)])
def test_members_of_both_interfaces_share_a_group(store: Served, new_topic, protocol: str):
    assert store.url is not None
    topic = new_topic("both", 4)
    group = f"both-{topic}"
    sent = [record._replace(partition=number % 4) for number, record in enumerate(alike_records(400))]
    CONFLUENT.produce(store, topic, sent, "none")
    theirs, ours = CONFIGS[protocol]
    seen: set[tuple[int, int]] = set()
    # The Kafka client is the last to leave, so it has all partitions then.
    with closing(Consumer({**consumer_config(store.bootstrap, group), **theirs})) as kafka:
        kafka.subscribe([topic])
        options = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **ours}
        with closing(logstore.Consumer(store.url, **options)) as consumer:
            consumer.subscribe([topic])

            def is_shared_and_read() -> bool:
                messages = kafka.consume(1_000, 0.05)
                assert not [message.error() for message in messages if message.error()]
                seen.update((message.partition(), message.offset()) for message in messages)
                seen.update((record.partition, record.offset) for record in consumer.poll(timeout_s=0.05))
                return len(kafka.assignment()) == len(consumer.assignment()) == 2 and len(seen) == 400

            eventually(is_shared_and_read, "the group never settled, or records are missing")
            shares = {one.partition for one in kafka.assignment()}, {one.partition for one in consumer.assignment()}
            assert set.union(*shares) == set(range(4))
            described = _described(store, group)
            assert described.state == ConsumerGroupState.STABLE
            assert sorted(len(member.assignment.topic_partitions) for member in described.members) == [2, 2]
            consumer.commit()

        with Admin(store.url) as admin:

            def has_taken_over() -> bool:
                """Return whether it has all partitions; it may read uncommitted records again after a rebalance."""
                kafka.consume(1_000, 0.05)
                read = [place for place in kafka.position(kafka.assignment()) if place.offset >= 0]
                if read:
                    try:
                        kafka.commit(offsets=read, asynchronous=False)
                    except KafkaException as error:
                        # The other member left a moment ago: the next response to a heartbeat (KIP-848) or to a join
                        # has the new assignment (classic: meanwhile a cooperative member has partitions, and may
                        # commit).
                        if error.args[0].code() not in _OF_A_REBALANCE:
                            raise
                return len(kafka.assignment()) == 4 and admin.group_lag(group).total_lag == 0

            eventually(has_taken_over, "the Kafka client never had all partitions, or did not commit")
            assert [part.committed_offset for part in admin.group_lag(group).partitions] == [100] * 4


def _described(served: Served, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
    return admin.describe_consumer_groups([group])[group].result(30)
