"""Other Kafka clients, one module each: they produce records to a topic and read topics from beginning to end.

They know nothing of the store: they get an address that any Kafka could have. ``over_http`` is the store's own
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
        """Return whether the client accepts such a record; some refuse a record without key and value."""
        ...

    def produce(self, served: Served, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
        """Produce the records and return their acknowledged offsets, in order."""
        ...

    def read(self, served: Served, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
        """Return all records of ``topics`` (names to numbers of partitions), by topic."""
        ...


CONFLUENT: Final[Client] = confluent_client.Confluent()
KAFKA_PYTHON: Final[Client] = kafka_python_client.KafkaPython()
AIOKAFKA: Final[Client] = aiokafka_client.Aiokafka()
HTTP: Final[Client] = over_http.OverHttp()
CLIENTS: Final = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA, HTTP)

__all__ = ["AIOKAFKA", "CLIENTS", "CODECS", "CONFLUENT", "HTTP", "KAFKA_PYTHON", "Client", "Served"]
