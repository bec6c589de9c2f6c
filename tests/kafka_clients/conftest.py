"""A store with a Kafka listener for other clients, one for all tests of a process.

``TEST_KAFKA_BOOTSTRAP=host:port`` uses a real Kafka instead: a test that fails against both demands what Kafka does not
do. Tests that also need HTTP are then skipped.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_clients import Served
from tests.support.kafka_clients.store_process import KafkaStoreProcess

NewTopicOf = Callable[..., str]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    bootstrap = os.environ.get("TEST_KAFKA_BOOTSTRAP")
    if bootstrap is not None:
        yield Served(bootstrap)
        return
    # Rebalances take a heartbeat or two.
    quick = {
        "LOGSTORE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
        "LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "500",
    }
    with KafkaStoreProcess(tmp_path_factory.mktemp("served") / "data", environment=quick) as store:
        yield store.served


@pytest.fixture
def store(served: Served) -> Served:
    """Return the store, for tests that also use HTTP or read the table; they are skipped on a real Kafka."""
    if served.is_kafka:
        pytest.skip("a real Kafka has no HTTP")
    return served


_numbers = itertools.count()


@pytest.fixture(scope="session")
def new_topic(served: Served) -> NewTopicOf:
    """Return ``new_topic(name, partitions, **configs)``: it creates a topic, and extends its name; ``_`` means ``.``"""
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})

    def create(name: str = "t", partitions: int = 2, **configs: str) -> str:
        topic = f"{name}-{os.getpid()}-{next(_numbers)}"
        config = {key.replace("_", "."): value for key, value in configs.items()}
        (made,) = admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
        made.result(30)
        return topic

    return create
