"""Other people's clients, one module each: produce records to a topic, read topics from their beginning to their end.

They know nothing of the store: they are given an address that any Kafka could have. ``over_http`` is the store's own
interface beside them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tests.support.kafka_clients import aiokafka_client, confluent_client, kafka_python_client, over_http
from tests.support.kafka_clients.records import CODECS, ReadRecord, SentRecord
from tests.support.kafka_clients.served import Served


class Client(Protocol):
    name: str
    codecs: tuple[str, ...]

    def can_send(self, record: SentRecord) -> bool:
        """Whether the client takes such a record at all; some refuse a record without key and value."""
        ...

    def produce(self, served: Served, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
        """The offsets that were acknowledged, in the order of the records."""
        ...

    def read(self, served: Served, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
        """All records of topics (with the number of their partitions), by topic."""
        ...


CONFLUENT: Final[Client] = confluent_client.Confluent()
KAFKA_PYTHON: Final[Client] = kafka_python_client.KafkaPython()
AIOKAFKA: Final[Client] = aiokafka_client.Aiokafka()
HTTP: Final[Client] = over_http.OverHttp()
CLIENTS: Final = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA, HTTP)

__all__ = ["AIOKAFKA", "CLIENTS", "CODECS", "CONFLUENT", "HTTP", "KAFKA_PYTHON", "Client", "Served"]
